/* Values that bytecode cannot hold, or cannot find: integers of 128 bits, members of virtual bases. */
struct Base {
	int count = 0;
};
struct Left : virtual Base {
	int left = 3;
};
struct Right : virtual Base {
	int right = 4;
};
struct Both : Left, Right {
	int both = 5;
};
typedef __int128 int128;

Both pair;
Both *at = &pair;
__int128 big = 5;
int128 row[3];
struct Boxed {
	int small;
	unsigned __int128 wide;
};
Boxed boxed;
long double ratio = 1;
int step;

extern "C" __attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

extern "C" __attribute__((noinline)) void done(void)
{
	__asm__ volatile("");
}

int main(void)
{
	ready();
	for (int i = 1; i <= 20; i++) {
		step = i;
		pair.count = 10 * i;
		big = 5 - i;
		row[1] = i;
		boxed.wide = i;
		ratio = i;
	}
	done();
	return 0;
}
