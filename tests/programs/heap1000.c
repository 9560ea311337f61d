/* A thousand heap blocks, written here and there, grown and freed. */
#include <stdio.h>
#include <stdlib.h>

enum { BLOCKS = 1000 };
struct block {
	long value;
	char rest[40];
} *blocks[BLOCKS];

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

int main(void)
{
	long sum = 0;

	for (int i = 0; i < BLOCKS; i++)
		blocks[i] = calloc(1, sizeof *blocks[i]);
	ready();
	for (int i = 0; i < BLOCKS; i += 100)
		blocks[i]->value = i + 1;
	for (int round = 0; round < 100; round++)
		for (int i = 0; i < BLOCKS; i++)
			blocks[i]->rest[round % 40]++;
	for (int i = 0; i < BLOCKS; i++)
		sum += blocks[i]->value + blocks[i]->rest[i % 40];
	for (int i = 0; i < BLOCKS; i++)
		free(blocks[i]);
	printf("heap1000: %ld\n", sum);
	return 0;
}
