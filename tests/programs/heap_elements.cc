// Errors in what containers have allocated, one for each word.
#include <cstdio>
#include <cstring>
#include <list>
#include <memory>
#include <string>
#include <vector>

struct Point {
	double x, y, z;
};

#define APART __attribute__((noinline))

template <class T> APART T &element(T *all, long n)
{
	return all[n];
}

static long zero = 0;

APART static void behind()
{
	std::vector<int> v(24, 1);
	zero += element(v.data(), 24);
}

APART static void before()
{
	std::vector<int> v(24, 1);
	zero += element(v.data(), -1);
}

APART static void points()
{
	std::vector<Point> v;
	for (int i = 0; i < 4; i++)
		v.push_back({1, 2, 3});
	zero += (long)element(v.data(), 4).y;
}

APART static void freed()
{
	std::vector<long> v(10, 1);
	long *old = v.data();
	v.resize(1000);
	zero += element(old, 3);
}

APART static void text()
{
	std::string s(100, 'x');
	zero += element(s.data(), 101);
}

APART static void array()
{
	auto a = std::make_unique<short[]>(10);
	zero += element(a.get(), 10);
}

APART static void strings()
{
	std::vector<std::string> v(5);
	zero += element((const char *)v.data(), 5 * sizeof(std::string));
}

APART static void pointers()
{
	std::vector<Point *> v(5);
	zero += (long)element(v.data(), 5);
}

APART static void node()
{
	std::list<int> l(1, 7);
	zero += element(&l.front(), 2);
}

APART static void alone()
{
	auto p = std::make_unique<int>(7);
	zero += element(p.get(), 1);
}

int main(int argc, char **argv)
{
	const struct {
		const char *word;
		void (*make)();
	} all[] = {{"behind", behind},	 {"before", before},	 {"points", points}, {"freed", freed}, {"text", text},
		   {"array", array},	 {"strings", strings}, {"pointers", pointers}, {"node", node}, {"alone", alone}};

	for (auto &one : all)
		if (argc > 1 && !strcmp(argv[1], one.word))
			one.make();
	return zero == 1 << 30;
}
