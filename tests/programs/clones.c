/* Tasks that are made without the C library's threads: clones HOW
 *
 *   shared      clone(2) with CLONE_VM alone: another process to the kernel, which shares our memory
 *   bare        a thread without the library's flags: no thread-local storage, nothing cleared at its end
 *   tight       two of the library's threads that run in circles until `stop` is set */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STACK = 1 << 16 };
volatile int counter;
volatile int ended;
volatile int stop;
volatile long turns[2];

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

__attribute__((noinline)) int in_clone(void *by)
{
	counter += (int)(long)by;
	ended = 1;
	return 0;
}

static void *in_circles(void *of)
{
	volatile long *turn = of;

	while (!stop)
		++*turn;
	return NULL;
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "";
	pthread_t threads[2];
	int status = -1;
	pid_t task = 0;
	char *stack = aligned_alloc(16, STACK);

	ready();
	if (strcmp(how, "shared") == 0) {
		task = clone(in_clone, stack + STACK, CLONE_VM | CLONE_FILES, (void *)5);
		if (waitpid(task, &status, __WALL) != task)
			return 1;
	} else if (strcmp(how, "bare") == 0) {
		task = clone(in_clone, stack + STACK, CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM,
			     (void *)5);
		while (!ended)
			usleep(1000);
		status = 0;
	} else if (strcmp(how, "tight") == 0) {
		for (int i = 0; i < 2; i++)
			pthread_create(&threads[i], NULL, in_circles, (void *)&turns[i]);
		for (int i = 0; i < 2; i++)
			pthread_join(threads[i], NULL);
		status = 0;
	}
	printf("clones: %d, status %d\n", counter, status);
	return task < 0;
}
