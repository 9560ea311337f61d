// A counter, an array and a structure, watched in C++, and in whatever language the user has set.
namespace shelf {
struct Box {
    int id;
    double weight;
};
long total;
int nums[6] = {1, 2, 3, 4, 5, 6};
Box box;
}

void ready() {}

void add(long n)
{
    shelf::total += n;
    shelf::nums[2]++;
    shelf::box.weight += 2.5;
}

int main()
{
    ready();
    add(5);
    add(900);
    return shelf::total == 905 ? 3 : 4;
}
