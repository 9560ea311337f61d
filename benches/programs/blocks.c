/* Threads that allocate blocks, store to and load from all of each, and free them: blocks COUNT ROUNDS. The
 * time is that of all together, for one block. */
#include <pthread.h>
#include <stdlib.h>

#include "measure.h"

enum { HELD = 64, WORDS = 32, MOST = 2 };
static pthread_barrier_t begin;
static long rounds;

static void *work(void *argument)
{
	unsigned *held[HELD] = { 0 };
	unsigned long sum = 0;

	for (int turn = 0; turn < 2; turn++) {
		pthread_barrier_wait(&begin); /* the second time: all is warm, and the clock runs */
		for (long n = 0; n < (turn ? rounds : 2000); n++) {
			unsigned **slot = &held[n % HELD];
			free(*slot);
			*slot = malloc(WORDS * sizeof **slot);
			for (volatile unsigned *word = *slot; word < *slot + WORDS; word++)
				*word = n;
			for (volatile unsigned *word = *slot; word < *slot + WORDS; word++)
				sum += *word;
		}
	}
	for (int n = 0; n < HELD; n++)
		free(held[n]);
	*(unsigned long *)argument = sum;
	return NULL;
}

int main(int argc, char **argv)
{
	int count = argc > 1 && atoi(argv[1]) == 2 ? 2 : 1;
	pthread_t threads[MOST];
	unsigned long sums[MOST];
	struct moment start;

	rounds = argc > 2 ? atol(argv[2]) : 100000;
	pthread_barrier_init(&begin, NULL, count + 1);
	for (int i = 0; i < count; i++)
		pthread_create(&threads[i], NULL, work, &sums[i]);
	pthread_barrier_wait(&begin);
	pthread_barrier_wait(&begin);
	start = moment();
	for (int i = 0; i < count; i++)
		pthread_join(threads[i], NULL);
	report(start, (double)count * rounds);
	return 0;
}
