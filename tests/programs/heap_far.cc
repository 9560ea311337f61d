// Out-of-block accesses that land in another block of the heap, over the redzone: an index comes from outside, as text through
// a pipe. Each has a twin with a good index. `heap_far bad` and `heap_far good` run all of them, or those whose names follow.
// Without arguments, it lists them with a word. `index`: the access has its pointer and its index. `object`: an operator of a
// class has them (a call without optimisation). `sum`: another function gets their sum and makes the access. `loop`: it gets
// there step by step, and so through the redzone. `none`: it is no error, bad or not.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <unistd.h>
#include <vector>

#include "heap_cases.h"

#define HIDDEN __attribute__((noinline, noclone))
#define CASE(name, word) \
	static void name(bool); \
	static Case of_##name(#name, #word, name); \
	static HIDDEN void name(bool bad)

static volatile long sink;
static int ends[2];

// Returns a number that the compiler cannot know.
static HIDDEN long read_number(long number)
{
	char text[32] = "";
	int len = snprintf(text, sizeof text, "%ld\n", number);
	if (write(ends[1], text, len) != len || read(ends[0], text, sizeof text - 1) != len)
		abort();
	return strtol(text, nullptr, 10);
}

// Of two neighbours, one before the block and one behind it most likely, the index of a byte in one.
static char *before, *behind;
static HIDDEN long index_of(const void *block, long size, const char *other)
{
	return (other + 2000 - (const char *)block) / size;
}
static HIDDEN void prepare() { before = (char *)calloc(4000, 1); }
static HIDDEN long index(bool bad, const void *block, long size, bool back = false)
{
	behind = (char *)calloc(4000, 1);
	return read_number(bad ? index_of(block, size, back ? before : behind) : 3);
}
// Frees a block. The compiler must assume that its contents are used.
static HIDDEN void give_back(void *block)
{
	asm volatile("" : : "r"(block) : "memory");
	free(block);
}
template <class T> static HIDDEN void use(T &what) { asm volatile("" : : "r"(&what) : "memory"); }
static HIDDEN void finish()
{
	free(before);
	free(behind);
}

struct Pair { long first, second; };
struct Three { int x, y, z; };
struct Five { double a, b, c, d, e; };
struct Wide { char name[92]; int age; short flags[4]; };
struct Holder { long size; int *items; char *text; };

template <class T> static T *make(size_t n = 10) { return (T *)calloc(n, sizeof(T)); }

// ---- one element of each size, written, read and updated ----
#define EACH(type, name) \
	CASE(write_##name, index) { prepare(); type *p = make<type>(); p[index(bad, p, sizeof *p)] = 1; give_back(p); finish(); } \
	CASE(read_##name, index) { prepare(); type *p = make<type>(); sink = p[index(bad, p, sizeof *p)]; give_back(p); finish(); } \
	CASE(update_##name, index) { prepare(); type *p = make<type>(); p[index(bad, p, sizeof *p)] += 3; give_back(p); finish(); } \
	CASE(write_back_##name, index) { prepare(); type *p = make<type>(); p[index(bad, p, sizeof *p, true)] = 1; give_back(p); finish(); } \
	CASE(read_new_##name, index) { prepare(); type *p = new type[10](); sink = p[index(bad, p, sizeof *p)]; use(*p); delete[] p; finish(); }
EACH(char, char)
EACH(short, short)
EACH(int, int)
EACH(long, long)
EACH(float, float)
EACH(double, double)

// ---- a number that was chosen well enough for another type ----
CASE(int_index, index) { prepare(); int *p = make<int>(); int n = (int)index(bad, p, sizeof *p); if (n >= 0 || bad) p[n] = 1; give_back(p); finish(); }
CASE(unsigned_index, index) { prepare(); long *p = make<long>(); unsigned n = (unsigned)index(bad, p, sizeof *p); p[(int)n] = 1; give_back(p); finish(); }
CASE(no_lower_bound, index) { prepare(); int *p = make<int>(); long n = index(bad, p, sizeof *p, true); if (n < 10 || bad) p[n] = 2; give_back(p); finish(); }

// ---- fields of structures ----
CASE(field_of_pair, index) { prepare(); Pair *p = make<Pair>(); p[index(bad, p, sizeof *p)].second = 1; give_back(p); finish(); }
CASE(field_of_three, index) { prepare(); Three *p = make<Three>(); p[index(bad, p, sizeof *p)].y = 1; give_back(p); finish(); }
CASE(field_of_five, index) { prepare(); Five *p = make<Five>(); p[index(bad, p, sizeof *p)].c = 1; give_back(p); finish(); }
CASE(field_of_wide, index) { prepare(); Wide *p = make<Wide>(); p[index(bad, p, sizeof *p)].age = 1; give_back(p); finish(); }
CASE(flag_of_wide, index) { prepare(); Wide *p = make<Wide>(); sink = p[index(bad, p, sizeof *p)].flags[2]; give_back(p); finish(); }
CASE(member_array, index) { prepare(); Holder h = {10, make<int>(), nullptr}; h.items[index(bad, h.items, 4)] = 1; give_back(h.items); finish(); }
CASE(member_of_heap, index)
{
	prepare();
	Holder *h = make<Holder>(1);
	h->items = make<int>();
	h->items[index(bad, h->items, 4)] = 1;
	give_back(h->items);
	give_back(h);
	finish();
}
CASE(member_text, index) { prepare(); Holder h = {10, nullptr, make<char>()}; h.text[index(bad, h.text, 1)] = 'x'; give_back(h.text); finish(); }

// ---- pointers that come from elsewhere ----
static int *global_items;
CASE(global_pointer, index) { prepare(); global_items = make<int>(); global_items[index(bad, global_items, 4)] = 1; give_back(global_items); finish(); }
static HIDDEN void store(int *p, long n, int value) { p[n] = value; }
CASE(by_parameter, index) { prepare(); int *p = make<int>(); store(p, index(bad, p, 4), 1); give_back(p); finish(); }
static HIDDEN char load(const char *p, long n) { return p[n]; }
CASE(char_by_parameter, index) { prepare(); char *p = make<char>(100); sink = load(p, index(bad, p, 1)); give_back(p); finish(); }
static HIDDEN double second(double **rows, long n) { return rows[1][n]; }
CASE(row_of_rows, index)
{
	prepare();
	double *rows[2] = {make<double>(), make<double>()};
	sink = (long)second(rows, index(bad, rows[1], 8));
	give_back(rows[0]);
	give_back(rows[1]);
	finish();
}
CASE(table_of_pointers, index)
{
	prepare();
	char **names = make<char *>();
	long n = index(bad, names, sizeof *names);
	sink = (long)names[n];
	give_back(names);
	finish();
}

// ---- after many good ones ----
CASE(after_many_int, index)
{
	prepare();
	int *p = make<int>(100);
	long last = index(bad, p, 4);
	for (long n = 0; n < 2000; n++)
		p[n == 1999 ? last : n * 7 % 100] += n;
	give_back(p);
	finish();
}
CASE(after_many_char, index)
{
	prepare();
	unsigned char *p = make<unsigned char>(256);
	long last = index(bad, p, 1);
	for (long n = 0; n < 2000; n++)
		p[n == 1999 ? last : n * 7 % 256]++;
	give_back(p);
	finish();
}
CASE(every_time, index)
{
	prepare();
	short *p = make<short>(100);
	long last = index(bad, p, 2);
	for (long n = 0; n < 200; n++)
		p[last + n % 4] = 1;
	give_back(p);
	finish();
}

// ---- C++ ----
CASE(vector_int, object) { prepare(); std::vector<int> v(10); v[index(bad, v.data(), 4)] = 1; use(*v.data()); finish(); }
CASE(vector_char, object) { prepare(); std::vector<char> v(100); sink = v[index(bad, v.data(), 1)]; finish(); }
CASE(vector_double, object) { prepare(); std::vector<double> v(10); v[index(bad, v.data(), 8)] *= 2; use(*v.data()); finish(); }
CASE(vector_of_five, object) { prepare(); std::vector<Five> v(10); v[index(bad, v.data(), sizeof(Five))].b = 1; use(*v.data()); finish(); }
CASE(unique_array, object) { prepare(); auto p = std::make_unique<int[]>(10); p[index(bad, p.get(), 4)] = 1; use(*p.get()); finish(); }
CASE(string_char, object) { prepare(); std::string s(100, 'x'); s[index(bad, s.data(), 1)] = 'y'; use(s[0]); finish(); }

// ---- the function with the access gets the sum ----
CASE(copy_to_far, sum) { prepare(); char from[200] = "x", *p = make<char>(300); memcpy(p + index(bad, p, 1), from, sizeof from); give_back(p); finish(); }
CASE(set_far, sum) { prepare(); char *p = make<char>(300); memset(p + index(bad, p, 1), 1, read_number(200)); give_back(p); finish(); }
CASE(length_of_far, sum) { prepare(); char *p = make<char>(300); sink = strlen(p + index(bad, p, 1)); give_back(p); finish(); }
static HIDDEN void increment(int *what) { ++*what; }
CASE(address_of_element, sum) { prepare(); int *p = make<int>(); increment(&p[index(bad, p, 4)]); give_back(p); finish(); }
CASE(pointer_moved_before, sum)
{
	prepare();
	int *p = make<int>(), *q = p + index(bad, p, 4);
	increment(q);
	q[1] = 2;
	give_back(p);
	finish();
}

// ---- step by step ----
CASE(loop_up, loop) { prepare(); int *p = make<int>(); long end = index(bad, p, 4); end = bad && end > 0 ? 14 : end; for (long n = 0; n < end || (bad && n < 14); n++) p[n] = 1; give_back(p); finish(); }
CASE(loop_down, loop) { prepare(); int *p = make<int>(); index(bad, p, 4); for (long n = 9; n >= (bad ? -3 : 0); n--) p[n] = 1; give_back(p); finish(); }

// ---- a sum precedes the access, but a jump leads to the access ----
#define JUMPED(name, between) \
	CASE(name, none) \
	{ \
		long *p = make<long>(), *other = make<long>(1000), n = bad ? 3 : 4; \
		asm volatile("jmp 3f\n" \
			     "1: lea (%[other],%[n],8),%[p]\n" \
			     "2: incq (%[p])\n" \
			     "jmp 4f\n" between "3: jmp 2b\n" \
			     "4:" \
			     : \
			     : [p] "r"(p), [other] "r"(other), [n] "r"(n) \
			     : "memory", "cc"); \
		give_back(other); \
		give_back(p); \
	}
JUMPED(jumped_near, "")
JUMPED(jumped_far, ".skip 3000\n")

// ---- an array's beginning less the first index is, by chance, the beginning of another block ----
CASE(less_the_first_index, none)
{
	int *p = make<int>(), *other = make<int>(1000), *base = other;
	long first = bad ? other - p : 3, n = first;
	asm volatile("neg %[n]\n"
		     "shl $2,%[n]\n"
		     "add %[n],%[base]\n"
		     "mov %[first],%[n]\n"
		     "incl (%[base],%[n],4)\n"
		     "incl 4(%[base],%[n],4)\n"
		     : [n] "+&r"(n), [base] "+&r"(base)
		     : [first] "m"(first)
		     : "memory", "cc");
	give_back(other);
	give_back(p);
}

int main(int argc, char **argv)
{
	bool all = argc == 2, list = argc == 1, bad = argc > 1 && !strcmp(argv[1], "bad");
	if (pipe(ends))
		return 1;
	for (Case *c = Case::first; c; c = c->next) {
		bool wanted = all;
		for (int n = 2; n < argc; n++)
			wanted |= !strcmp(argv[n], c->name);
		if (list)
			printf("%s %s\n", c->name, c->word);
		else if (wanted)
			c->run(bad);
	}
	return 0;
}
