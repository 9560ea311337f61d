/* Variables without a place: what an optimiser makes of locals. */
#include <stdio.h>
#include <stdlib.h>

int kept = 1;
volatile int source = 5;

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

__attribute__((noinline)) static int work(int n)
{
	int gone = source * 3; /* nothing keeps it over the call */
	int constant = 7;

	kept += gone + constant + n;
	ready();
	return kept;
}

int main(int argc, char **argv)
{
	(void)argv;
	printf("optimised: %d\n", work(argc));
	return 0;
}
