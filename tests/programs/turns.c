/* Threads that stay at one instruction, `spot`. Argument: how many. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

volatile int zero;
static pthread_barrier_t all;

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

static void *stay(void *argument)
{
	(void)argument;
	pthread_barrier_wait(&all);
	__asm__ volatile(".globl spot\nspot: jmp spot");
	return NULL;
}

int main(int argc, char **argv)
{
	int count = argc > 1 ? atoi(argv[1]) : 2;
	pthread_t thread;

	alarm(600);
	pthread_barrier_init(&all, NULL, (unsigned)count + 1);
	for (int i = 0; i < count; i++)
		if (pthread_create(&thread, NULL, stay, NULL) != 0)
			return 3;
	pthread_barrier_wait(&all);
	ready();
	for (;;)
		pause();
}
