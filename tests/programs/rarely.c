/* Two threads store as often as argument 1 says to the watched page, each time after a million stores of the same
   instruction to one of their own. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static long rounds;
static _Alignas(4096) long watched[512];
static _Alignas(4096) long own[2][512];

__attribute__((noinline)) static void store(volatile long *to, long times)
{
	for (long n = 0; n < times; n++)
		*to = n;
}

static void *run(void *which)
{
	long me = (long)which;
	for (long n = 0; n < rounds; n++) {
		store(&own[me][0], 1000000);
		store(&watched[me], 1);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t other;
	rounds = argc > 1 ? atol(argv[1]) : 1000;
	pthread_create(&other, NULL, run, (void *)1);
	run(NULL);
	pthread_join(other, NULL);
	printf("rarely: %ld\n", rounds);
	return 0;
}
