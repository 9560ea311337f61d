/* 200 threads that start, store and end, some of them while others start; then, if asked, one of many
 * running threads executes this program anew, or ends it. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROUNDS = 20, THREADS = 10 };

_Alignas(4096) volatile long count;
volatile long spinning;

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

static void *worker(void *argument)
{
	for (long i = 0; i < (long)argument; i++)
		__atomic_add_fetch(&count, 1, __ATOMIC_RELAXED);
	return NULL;
}

static void *spinner(void *argument)
{
	(void)argument;
	__atomic_add_fetch(&spinning, 1, __ATOMIC_RELAXED);
	for (;;)
		__atomic_add_fetch(&count, 1, __ATOMIC_RELAXED);
	return NULL;
}

static char **arguments;

static void *executes(void *how)
{
	while (spinning < 4)
		usleep(100);
	if (!strcmp(how, "exit"))
		exit(5);
	execl(arguments[0], arguments[0], "again", NULL);
	perror("exec");
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[THREADS];

	arguments = argv;
	if (argc > 1 && !strcmp(argv[1], "again")) {
		puts("thread_churn: executed");
		return 0;
	}
	ready();
	for (int round = 0; round < ROUNDS; round++) {
		for (long i = 0; i < THREADS; i++)
			pthread_create(&threads[i], NULL, worker, (void *)(i + 1));
		for (int i = 0; i < THREADS; i++)
			pthread_join(threads[i], NULL);
	}
	printf("thread_churn: %d threads, count %ld\n", ROUNDS * THREADS, count);
	fflush(stdout);
	if (argc > 1) {
		pthread_t other;

		for (int i = 0; i < 4; i++)
			pthread_create(&other, NULL, spinner, NULL);
		pthread_create(&other, NULL, executes, argv[1]);
		pthread_join(other, NULL);
	}
	return 0;
}
