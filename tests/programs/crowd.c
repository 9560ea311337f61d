/* Waves of threads, all of a wave at the same time: each stores 1, 2, 3, … into its own cell, and the last
 * value of all into `total`. Arguments: threads in a wave, waves, stores of each thread. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { MOST = 4096 };

_Alignas(4096) volatile long cells[MOST];
_Alignas(4096) volatile long total;
static long stores = 20;
static pthread_barrier_t start;

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

__attribute__((noinline)) void step(long index, long value)
{
	cells[index] = value;
}

static void *worker(void *argument)
{
	long index = (long)argument;

	pthread_barrier_wait(&start);
	for (long i = 1; i <= stores; i++)
		step(index, i);
	__atomic_add_fetch(&total, stores, __ATOMIC_RELAXED);
	pthread_barrier_wait(&start);
	return NULL;
}

int main(int argc, char **argv)
{
	static pthread_t threads[MOST];
	long crowd = argc > 1 ? atol(argv[1]) : 100, waves = argc > 2 ? atol(argv[2]) : 2;
	pthread_attr_t small;

	if (argc > 3)
		stores = atol(argv[3]);
	if (crowd < 1 || crowd > MOST)
		return 2;
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 64 << 10);
	pthread_barrier_init(&start, NULL, (unsigned)crowd);
	ready();
	for (long wave = 0; wave < waves; wave++) {
		for (long i = 0; i < crowd; i++)
			if (pthread_create(&threads[i], &small, worker, (void *)i) != 0)
				return 3;
		for (long i = 0; i < crowd; i++)
			pthread_join(threads[i], NULL);
	}
	printf("crowd: total %ld\n", total);
	if (argc > 4) { /* stays, to be looked at */
		fflush(stdout);
		sleep((unsigned)atol(argv[4]));
	}
	return 0;
}
