/* Stores each byte of 256 pages, one store instruction a byte, in address order: sweep ROUNDS
 * (the loop of the thesis's tables 4.3 and 4.4). Prints the median round's nanoseconds a store. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SIZE (256 * 4096)
unsigned char *block;

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

/* In assembly, so that it is one store a byte whatever the compiler thinks of it. */
__attribute__((noinline)) static void fill(unsigned char *from, unsigned char *to, int value)
{
	__asm__ volatile("1:	mov	%b2, (%0)\n"
			 "	inc	%0\n"
			 "	cmp	%1, %0\n"
			 "	jne	1b"
			 : "+r"(from)
			 : "r"(to), "q"(value)
			 : "memory", "cc");
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 40;
	double *times = calloc(rounds, sizeof *times);

	block = aligned_alloc(4096, SIZE);
	memset(block, 0, SIZE);
	ready();
	for (int n = 0; n < rounds; n++) {
		struct timespec a, b;

		clock_gettime(CLOCK_MONOTONIC, &a);
		fill(block, block + SIZE, n);
		clock_gettime(CLOCK_MONOTONIC, &b);
		times[n] = ((b.tv_sec - a.tv_sec) * 1e9 + (b.tv_nsec - a.tv_nsec)) / SIZE;
	}
	qsort(times, rounds, sizeof *times, compare);
	printf("ns %.3f\n", times[rounds / 2]);
	return 0;
}
