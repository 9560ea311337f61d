/* Memory of every sort, each marked by a store of its own number. A watch on the heap has to see the heap's
 * marks, and no others (static data, stacks, files, memory that was given back). */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define MARK(where, number) (*(volatile uint64_t *)(where) = 0x6d61726b00000000u + (number))
enum { BIG = 4 << 20, PAGE = 4096 };

static uint64_t data = 1, bss;

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

static void *thread(void *mine)
{
	uint64_t local;

	MARK(&local, 103);
	MARK(mine, 6);
	uint64_t *own = malloc(64); /* in an arena of its own */
	MARK(own, 7);
	free(own);
	return NULL;
}

int main(void)
{
	uint64_t local;
	pthread_t other;

	ready();
	MARK(&data, 100);
	MARK(&bss, 101);
	MARK(&local, 102);

	char *small = malloc(64);
	MARK(small, 1);
	char *big = malloc(BIG);
	MARK(big + BIG - 8, 2);
	big = realloc(big, 8 * BIG);
	MARK(big + 8 * BIG - 8, 3);
	MARK(big, 4);
	free(big);

	/* Reserved first, as collectors do; then a file in its middle. */
	char *reserved = mmap(NULL, BIG, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	mprotect(reserved + PAGE, 8 * PAGE, PROT_READ | PROT_WRITE);
	MARK(reserved + PAGE, 5);
	pthread_create(&other, NULL, thread, small + 8);
	pthread_join(other, NULL);
	int file = memfd_create("file", 0);
	ftruncate(file, PAGE);
	mmap(reserved + 2 * PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file, 0);
	MARK(reserved + 2 * PAGE, 104);
	MARK(reserved + 3 * PAGE - 8, 105);
	MARK(reserved + 3 * PAGE, 8);
	mmap(reserved + 20 * PAGE, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	MARK(reserved + 21 * PAGE, 9);

	/* Up, down and up again. */
	char *top = sbrk(64 * PAGE);
	MARK(top + 32 * PAGE, 10);
	sbrk(-32 * PAGE);
	sbrk(32 * PAGE);
	printf("allocations: %lu after the break has come back\n", *(uint64_t *)(top + 32 * PAGE));
	MARK(top + 33 * PAGE, 11);
	return 0;
}
