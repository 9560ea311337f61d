/* Work of several kinds that never touches the guarded page: what does being watched cost then? */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

_Alignas(4096) long guarded[512];

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

static int by_value(const void *a, const void *b)
{
	long x = *(const long *)a, y = *(const long *)b;

	return (x > y) - (x < y);
}

int main(void)
{
	enum { N = 1 << 16 };
	long *numbers = malloc(N * sizeof *numbers);
	unsigned long seed = 1, sum = 0;
	struct timespec start, end;

	guarded[0] = 1;
	ready();
	clock_gettime(CLOCK_MONOTONIC, &start);
	for (int round = 0; round < 40; round++) {
		char **blocks = malloc(1000 * sizeof *blocks);

		for (int i = 0; i < N; i++)
			numbers[i] = (seed = seed * 6364136223846793005u + 1442695040888963407u) >> 33;
		qsort(numbers, N, sizeof *numbers, by_value);
		for (int i = 0; i < 1000; i++)
			sprintf(blocks[i] = malloc(64), "block %ld", numbers[i * 60]);
		for (int i = 0; i < 1000; i++) {
			sum = sum * 31 + strlen(blocks[i]);
			free(blocks[i]);
		}
		free(blocks);
	}
	clock_gettime(CLOCK_MONOTONIC, &end);
	printf("ns %.0f\nsum %lu\n", (end.tv_sec - start.tv_sec) * 1e9 + end.tv_nsec - start.tv_nsec, sum);
	return 0;
}
