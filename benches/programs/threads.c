/* Threads that each store every byte of 128 pages of their own: threads COUNT ROUNDS. The time is that
 * of all together, for one store. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "measure.h"

enum { SIZE = 128 * 4096, MOST = 2 };
_Alignas(4096) unsigned char block[MOST * SIZE];
static pthread_barrier_t begin;
static long rounds;

static void *work(void *argument)
{
	volatile unsigned char *bytes = argument;

	for (int turn = 0; turn < 2; turn++) {
		pthread_barrier_wait(&begin); /* the second time: all is warm, and the clock runs */
		for (long n = 0; n < (turn ? rounds : 2); n++)
			for (long i = 0; i < SIZE; i++)
				bytes[i] = n;
	}
	return NULL;
}

int main(int argc, char **argv)
{
	int count = argc > 1 && atoi(argv[1]) == 2 ? 2 : 1;
	pthread_t threads[MOST];
	struct moment start;

	rounds = argc > 2 ? atol(argv[2]) : 100;
	memset(block, 0, sizeof block);
	pthread_barrier_init(&begin, NULL, count + 1);
	ready();
	for (int i = 0; i < count; i++)
		pthread_create(&threads[i], NULL, work, block + i * SIZE);
	pthread_barrier_wait(&begin);
	pthread_barrier_wait(&begin);
	start = moment();
	for (int i = 0; i < count; i++)
		pthread_join(threads[i], NULL);
	report(start, (double)count * rounds * SIZE);
	return 0;
}
