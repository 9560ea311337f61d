/* A heap as V8's is: chunks of 256 KiB far from each other, which go, and come again elsewhere. Prints how many stores it
 * has made to them; `scattered CHUNKS GENERATIONS ROUNDS`. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define CHUNK (256l << 10)
#define APART (3l << 30)
#define FIRST 0x100000000000l

static long stores;

__attribute__((noinline)) void touch(volatile uint64_t *chunk, uint64_t value)
{
	for (long n = 0; n < CHUNK / 8; n += 64) {
		chunk[n] = value + n;
		stores++;
	}
}

int main(int argc, char **argv)
{
	long chunks = argc > 1 ? atol(argv[1]) : 200, generations = argc > 2 ? atol(argv[2]) : 3;
	long rounds = argc > 3 ? atol(argv[3]) : 10, wrong = 0;
	uint64_t **all = calloc(chunks, sizeof *all);

	for (long g = 0; g < generations; g++) {
		for (long c = 0; c < chunks; c++) {
			void *at = (void *)(FIRST + (g * chunks + c) * APART);
			int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;

			all[c] = mmap(at, CHUNK, PROT_READ | PROT_WRITE, flags, -1, 0);
			if (all[c] == MAP_FAILED)
				return 3;
		}
		for (long r = 0; r < rounds; r++)
			for (long c = 0; c < chunks; c++)
				touch(all[c], r + c);
		for (long c = 0; c < chunks; c++) {
			for (long n = 0; n < CHUNK / 8; n += 64)
				wrong += all[c][n] != (uint64_t)(rounds - 1 + c + n);
			munmap(all[c], CHUNK);
		}
	}
	printf("scattered: %ld stores, %ld wrong\n", stores, wrong);
	return wrong != 0;
}
