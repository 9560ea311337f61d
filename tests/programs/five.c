/* Five variables on one page: one more than the debug registers of an x86 can watch. */
#include <stdio.h>

int a = 10, b = 20, c = 30, d = 40, e = 50;
int unwatched[64];

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

int main(void)
{
	ready();
	a = 11;
	unwatched[0] = 1; /* a page-mate: no stop */
	b = 21;
	b = 21; /* silent: no stop */
	c = 31;
	unwatched[1] = 1;
	d = 41;
	e = 51;
	for (int i = 0; i < 1000; i++)
		unwatched[i % 64] += i;
	a = 12;
	puts("five: done");
	return 0;
}
