/* Stores each byte of a block, one store instruction a byte, in address order, again and again: the
 * loop of the thesis's tables 4.3 to 4.6.
 *
 *   sweep PAGES ROUNDS SECONDS [STORES]     at most 256 pages; STORES: only so many of a round
 *
 * Prints the median round's and the first round's time for a store. `ulpf bench` disassembles fill()
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

/* Whoever steps through the program may stop stepping. */
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
	double *ns = calloc(most, sizeof *ns), *cycles = calloc(most, sizeof *cycles), first;
	struct moment start, a, b;

	if (argc > 4)
		size = atol(argv[4]);
	memset(block, 0, sizeof block);
	ready();
	start = a = moment();
	do {
		fill(block, size, rounds + 1);
		b = moment();
		ns[rounds] = (b.ns - a.ns) / size;
		cycles[rounds++] = (double)(b.cycles - a.cycles) / size;
		a = b;
	} while (rounds < most && b.ns - start.ns < seconds * 1e9);
	measured();
	first = ns[0];
	qsort(ns, rounds, sizeof *ns, compare);
	qsort(cycles, rounds, sizeof *cycles, compare);
	printf("bench: ns=%.3f cycles=%.3f first=%.3f rounds=%d\n", ns[rounds / 2], cycles[rounds / 2], first, rounds);
	return 0;
}
