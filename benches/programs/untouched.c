/* Work of several kinds that never touches the guarded page: what does being watched cost then? */
#include <stdlib.h>
#include <string.h>

#include "measure.h"

_Alignas(4096) long guarded[512];

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
	struct moment start;

	guarded[0] = 1;
	ready();
	start = moment();
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
	report(start, 1);
	printf("sum %lu\n", sum);
	return 0;
}
