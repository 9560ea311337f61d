/* Times stores to one page: stores MODE COUNT
 *
 *     mate    Stores beside the watched long, on its page    (a false positive).
 *     silent  Stores the value that is already there         (a silent store, which needs no stop).
 *     change  Stores a new value each time                   (a hit that a debugger wants to see).
 *     read    Reads the watched long                         (no hit of a write watch).
 */
#include <stdlib.h>
#include <string.h>

#include "measure.h"

_Alignas(4096) volatile long page[512];
#define watched page[0]

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "mate";
	long count = argc > 2 ? atol(argv[2]) : 100000, sum = 0;
	struct moment start;

	page[64] = 1; /* there, and warm */
	ready();
	page[65] = 1; /* the first fault decodes and builds: not what we time */
	watched = 0;
	start = moment();
	if (!strcmp(mode, "mate"))
		for (long i = 0; i < count; i++)
			page[64] = i;
	else if (!strcmp(mode, "silent"))
		for (long i = 0; i < count; i++)
			watched = 0;
	else if (!strcmp(mode, "change"))
		for (long i = 0; i < count; i++)
			watched = i + 1;
	else
		for (long i = 0; i < count; i++)
			sum += watched;
	report(start, count);
	return sum == 42;
}
