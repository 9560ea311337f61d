/* Stores to the last 64 bytes of each of 256 pages, in a loop: mates SECONDS. The watches are on the
 * other bytes of these pages. */
#include <stdlib.h>
#include <string.h>

#include "measure.h"

_Alignas(4096) unsigned char block[256 * 4096];

int main(int argc, char **argv)
{
	double end = (argc > 1 ? atof(argv[1]) : 0.2) * 1e9, count = 0;
	volatile unsigned char *bytes = block;
	struct moment start;

	memset(block, 0, sizeof block);
	ready();
	for (int warm = 0; warm < 4; warm++) {
		start = moment();
		for (count = 0; count == 0 || (warm == 3 && moment().ns - start.ns < end); count += 256 * 64)
			for (int page = 0; page < 256; page++)
				for (int i = 4096 - 64; i < 4096; i++)
					bytes[page * 4096 + i] = i;
	}
	report(start, count);
	return 0;
}
