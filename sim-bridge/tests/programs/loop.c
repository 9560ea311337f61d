// Stores to a table, N times; for speed, and for watches.
#include <stdio.h>
#include <stdlib.h>

unsigned table[4096], total;

int main(int argc, char **argv)
{
	unsigned rounds = argc > 1 ? atoi(argv[1]) : 1;
	for (unsigned r = 0; r < rounds; r++)
		for (unsigned i = 0; i < 4096; i++) {
			((volatile unsigned *)table)[i] += i * r;
			total ^= table[i];
		}
	printf("%u\n", total);
	return 0;
}
