/* Threads that store to the same variable (`rivals HOW TIMES`): each hit's old value is the one that the hit before has left. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

volatile long shared;
static long times;
static int plainly;

static void *work(void *argument)
{
	for (long n = 0; n < times; n++) {
		if (plainly)
			shared = n * 4 + (long)argument;
		else
			__atomic_fetch_add(&shared, 1, __ATOMIC_SEQ_CST);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[3];
	plainly = argc > 1 && !strcmp(argv[1], "plain");
	times = argc > 2 ? atol(argv[2]) : 1000;
	for (long n = 0; n < 3; n++)
		pthread_create(&threads[n], NULL, work, (void *)n);
	for (int n = 0; n < 3; n++)
		pthread_join(threads[n], NULL);
	puts("done");
	return 0;
}
