/*
 * Allocates and frees large blocks of all sizes, of which few are in use at a time: heap_large ROUNDS. Then allocates one that
 * is as large as all of them together, and prints what the process takes of memory, in KiB.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HELD = 64, LEAST = 20000, MOST = 800000 };

int main(int argc, char **argv)
{
	static char *held[HELD];
	static char line[256];
	unsigned random = 1;
	FILE *rollup;

	for (long n = 0; n < atol(argv[1]); n++) {
		random = random * 1103515245 + 12345;
		char **slot = &held[random >> 16 & (HELD - 1)];
		random = random * 1103515245 + 12345;
		size_t size = LEAST + (random >> 8) % MOST;
		free(*slot);
		*slot = malloc(size);
		memset(*slot, 1, 4096);
		(*slot)[size - 1] = 1;
	}
	for (int n = 0; n < HELD; n++)
		free(held[n]);
	char *zeros = calloc(HELD, MOST);
	for (size_t n = 0; n < (size_t)HELD * MOST; n += 512)
		if (zeros[n])
			return 1;
	free(zeros);
	rollup = fopen("/proc/self/smaps_rollup", "r");
	while (fgets(line, sizeof line, rollup))
		if (strncmp(line, "Pss:", 4) == 0)
			printf("%d\n", atoi(line + 4));
	return 0;
}
