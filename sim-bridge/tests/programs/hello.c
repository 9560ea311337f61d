// Uses the parts of the machine that a static program needs: output, heap, files, time, arguments,
// floating point.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <sys/mman.h>

int main(int argc, char **argv)
{
	char *big = malloc(1 << 20), *map = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	volatile double two = 2;
	struct timespec t;
	memset(big, 'x', 1 << 20);
	map[8191] = 1;
	munmap(map, 8192);
	free(big);
	clock_gettime(CLOCK_MONOTONIC, &t);
	FILE *f = fopen("/proc/version", "r");
	printf("hello %s, sqrt(2) = %.6f, file %d, time %d\n", argc > 1 ? argv[1] : "world", sqrt(two), f != NULL, t.tv_sec > 0);
	return 7;
}
