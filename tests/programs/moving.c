/* Generated code that a collector moves, as V8's does: it copies what was executed, bytes and all, and wipes what it has copied.
 * Several threads run code of their own meanwhile. Prints how many stores the code has made to `cells`;
 * `moving THREADS MOVES RUNS`. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MOST 8
#define CODE 4096
#define PLACES 4

/* Of each thread a page, and one more. */
uint64_t cells[MOST + 1][512] __attribute__((aligned(4096)));

/* mov %rsi,(%rdi,%rdx); add $8,%rdx; lea (%rsi,%rdx),%rax; ret. */
static const unsigned char code[] = {0x48, 0x89, 0x34, 0x17, 0x48, 0x83, 0xc2, 0x08, 0x48, 0x8d, 0x04, 0x16, 0xc3};
typedef uint64_t function(uint64_t *, uint64_t, uint64_t);

static long moves, runs, wrong;

struct heap {
	unsigned char *from, *to;
};

/* By this name ulpf knows when code is moved. */
void collect(struct heap *heap) __asm__("_ZN2v88internal20MarkCompactCollector14CollectGarbageEv");
__attribute__((noinline)) void collect(struct heap *heap)
{
	memcpy(heap->to, heap->from, CODE);
	memset(heap->from, 0xcc, CODE);
	if (memcmp(heap->to, code, sizeof code))
		__atomic_fetch_add(&wrong, 1, __ATOMIC_SEQ_CST);
}

static void *work(void *arg)
{
	long n = (long)arg;
	int prot = PROT_READ | PROT_WRITE | PROT_EXEC;
	unsigned char *places = mmap(0, PLACES * CODE, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (places == MAP_FAILED)
		exit(3);
	memcpy(places, code, sizeof code);
	for (long m = 0; m < moves; m++) {
		struct heap heap = {places + m % PLACES * CODE, places + (m + 1) % PLACES * CODE};

		for (long r = 0; r < runs; r++) {
			uint64_t at = r % 512 * 8;

			if (((function *)heap.from)(cells[n], r, at) != r + at + 8)
				__atomic_fetch_add(&wrong, 1, __ATOMIC_SEQ_CST);
		}
		collect(&heap);
	}
	return 0;
}

int main(int argc, char **argv)
{
	long threads = argc > 1 ? atol(argv[1]) : 1;
	pthread_t all[MOST];

	moves = argc > 2 ? atol(argv[2]) : 20;
	runs = argc > 3 ? atol(argv[3]) : 2000;
	for (long n = 0; n < threads && n < MOST; n++)
		pthread_create(&all[n], 0, work, (void *)n);
	for (long n = 0; n < threads && n < MOST; n++)
		pthread_join(all[n], 0);
	printf("%ld stores, %ld wrong\n", threads * moves * runs, wrong);
	return wrong != 0;
}
