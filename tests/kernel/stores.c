/* Cost of a store beside a watch; time is instructions where the machine counts them. */
#include <stdio.h>
#include <time.h>

#define STORES 20000

static volatile int page[1024] __attribute__((aligned(4096)));

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

int main(void)
{
	double start = 0;

	/* The first round finds the instruction out. */
	for (int round = 0; round < 2; round++) {
		start = now();
		for (int i = 0; i < STORES; i++)
			page[512] = i;
	}
	printf("%.0f\n", (now() - start) / STORES);
	return 0;
}
