/* Threads that run independently, for non-stop mode: two count, one stores, and all of them leave, crash, fork or exit
 * when the debugger sets a variable. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { COUNTERS = 2 };

volatile long counts[COUNTERS], bystander;
_Alignas(4096) volatile long stored;
static pthread_barrier_t start;
volatile int leave[COUNTERS], crash, forks, finished, finish_soon;

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

static void nap(long milliseconds)
{
	struct timespec time = { 0, milliseconds * 1000000 };

	nanosleep(&time, NULL);
}

__attribute__((noinline)) static void turn(long which)
{
	counts[which]++;
	bystander++;
}

static void *counter(void *argument)
{
	long which = (long)argument;

	pthread_barrier_wait(&start);
	while (!finished && !leave[which]) {
		turn(which);
		nap(1);
		if (crash && which == 0)
			*(volatile int *)8 = 1;
		if (forks && which == 0) {
			pid_t child = fork();

			if (child == 0)
				_exit(0);
			forks--;
			waitpid(child, NULL, 0);
		}
	}
	return NULL;
}

static void *storer(void *argument)
{
	(void)argument;
	pthread_barrier_wait(&start);
	while (!finished) {
		nap(2);
		stored++;
	}
	return NULL;
}

int main(void)
{
	pthread_t threads[COUNTERS + 1];

	pthread_barrier_init(&start, NULL, COUNTERS + 2);
	for (long i = 0; i < COUNTERS; i++)
		pthread_create(&threads[i], NULL, counter, (void *)i);
	pthread_create(&threads[COUNTERS], NULL, storer, NULL);
	pthread_barrier_wait(&start);
	ready();
	while (!finished) {
		nap(10);
		if (finish_soon && !--finish_soon)
			finished = 1;
	}
	for (int i = 0; i <= COUNTERS; i++)
		pthread_join(threads[i], NULL);
	printf("independent: done\n");
	return 3;
}
