/* 16 threads that pass the same function all the time: a breakpoint there is met by many at once,
 * also while a debugger steps one of them over it. */
#include <pthread.h>
#include <stdio.h>

enum { THREADS = 16, ROUNDS = 500 };

static long sums[THREADS];

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

__attribute__((noinline)) void cross(long thread, long round)
{
	sums[thread] += round;
	__asm__ volatile("" ::: "memory");
}

static void *worker(void *argument)
{
	for (long round = 0; round < ROUNDS; round++)
		cross((long)argument, round);
	return NULL;
}

int main(void)
{
	pthread_t threads[THREADS];
	long sum = 0;

	ready();
	for (long i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, worker, (void *)i);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < THREADS; i++)
		sum += sums[i];
	printf("crossing: sum %ld\n", sum);
	return 0;
}
