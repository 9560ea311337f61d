/* Stores each byte of a block, one store instruction a byte, in address order, again and again: the
 * loop of the thesis's tables 4.3 to 4.6.
 *
 *   sweep PAGES ROUNDS SECONDS [STORES]     at most 256 pages; STORES: only so many of a round
 *
 * Prints the median round's and the first round's time for a store. `ulpf-bench` disassembles fill()
 * and refuses to go on when it is not that loop. */
#include <stdlib.h>
#include <string.h>

#include "measure.h"

#ifndef STORED
#define STORED volatile
#endif

_Alignas(4096) unsigned char block[256 * 4096];

__attribute__((noinline)) void fill(STORED unsigned char *bytes, long size, unsigned char value)
{
	for (long i = 0; i < size; i++)
		bytes[i] = value;
}

/* Nanoseconds of a cycle. The rounds themselves are timed by rdtsc alone. The vDSO's clock retries when
 * the kernel has updated it, so under a debugger that steps it never returns. */
static double calibrate(void)
{
	struct moment from = {0}, to = {0};

	for (int end = 0; end < 2; end++) {
		unsigned long long best = -1ull;
		struct moment *at = end ? &to : &from;

		for (int i = 0; i < 20; i++) {
			unsigned long long before = __rdtsc();
			struct moment now = moment();

			if (now.cycles - before < best) {
				best = now.cycles - before;
				*at = now;
			}
		}
		for (struct moment now = moment(); !end && now.ns - from.ns < 3e6; now = moment())
			;
	}
	return (to.ns - from.ns) / (to.cycles - from.cycles);
}

/* A debugger that steps through the program may stop stepping here. */
__attribute__((noinline)) void measured(void)
{
	__asm__ volatile("");
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	long size = (argc > 1 ? atol(argv[1]) : 256) * 4096;
	int most = argc > 2 ? atoi(argv[2]) : 40, rounds = 0;
	double seconds = argc > 3 ? atof(argv[3]) : 1;
	double *cycles = calloc(most, sizeof *cycles), first, ns;
	unsigned long long start, a, b;

	if (argc > 4)
		size = atol(argv[4]);
	memset(block, 0, sizeof block);
	ns = calibrate();
	ready();
	start = a = __rdtsc();
	do {
		fill(block, size, rounds + 1);
		b = __rdtsc();
		cycles[rounds++] = (double)(b - a) / size;
		a = b;
	} while (rounds < most && (b - start) * ns < seconds * 1e9);
	measured();
	first = cycles[0];
	qsort(cycles, rounds, sizeof *cycles, compare);
	printf("bench: ns=%.3f cycles=%.3f first=%.3f rounds=%d\n", cycles[rounds / 2] * ns, cycles[rounds / 2],
	       first * ns, rounds);
	return 0;
}
