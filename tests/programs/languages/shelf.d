// A counter, watched in D. (GDB finds no variable of a module of gdc's; so an address leads to it.)
module shelf;

struct Place
{
    long total;
}

__gshared Place place;

void ready(Place* where)
{
}

void add(long n)
{
    place.total += n;
}

int main()
{
    ready(&place);
    add(5);
    add(900);
    return place.total == 905 ? 3 : 4;
}
