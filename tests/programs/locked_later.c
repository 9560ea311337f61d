/* All memory to come is to be locked, and filled (MCL_FUTURE). Then stores become busy. How much more is locked in the end? */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define CELLS 8192

static long locked(void)
{
	char line[256];
	long kilobytes = -1;
	FILE *status = fopen("/proc/self/status", "r");

	while (status && fgets(line, sizeof line, status))
		sscanf(line, "VmLck: %ld", &kilobytes);
	if (status)
		fclose(status);
	return kilobytes;
}

int main(void)
{
	volatile long *cells = calloc(CELLS, sizeof *cells);
	long before;

	if (mlockall(MCL_CURRENT | MCL_FUTURE))
		return 77;
	before = locked();
	for (int i = 0; i < 3000000; i++)
		cells[i % CELLS] += i;
	printf("%s\n", locked() - before < 65536 ? "as before" : "much more");
	return 0;
}
