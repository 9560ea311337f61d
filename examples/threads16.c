/* 16 threads store a million times each into neighbouring bytes of one page.
 * The program counts for itself what a watch on one of the bytes must see. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { THREADS = 16 };

_Alignas(4096) volatile unsigned char cells[4096];
long stores = 1000000;
static pthread_barrier_t start;

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

static void *worker(void *argument)
{
	long index = (long)argument;

	pthread_barrier_wait(&start);
	for (long i = 1; i <= stores; i++)
		cells[index] = (unsigned char)i;
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[THREADS];
	unsigned long sum = 0;

	if (argc > 1)
		stores = atol(argv[1]);
	pthread_barrier_init(&start, NULL, THREADS);
	ready();
	for (long i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, worker, (void *)i);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < 4096; i++)
		sum = sum * 31 + cells[i];
	printf("threads16: %d x %ld stores, checksum %016lx\n", THREADS, stores, sum);
	return 0;
}
