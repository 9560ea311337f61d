/* Twelve threads, more than a checked heap has shelves: each allocates, all hold their blocks at once, and each frees those of
 * its neighbour. Round after round. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 12, BLOCKS = 200, SIZE = 1000, ROUNDS = 20 };

static char *blocks[THREADS][BLOCKS];
static pthread_barrier_t together;
static int wrong[THREADS];

static void *work(void *arg)
{
	size_t me = (size_t)arg, other = (me + 1) % THREADS;
	for (int round = 0; round < ROUNDS; round++) {
		for (int n = 0; n < BLOCKS; n++)
			blocks[me][n] = memset(malloc(SIZE), (int)me, SIZE);
		pthread_barrier_wait(&together);
		for (int n = 0; n < BLOCKS; n++) {
			wrong[me] += blocks[other][n][SIZE - 1] != (char)other || blocks[other][n][0] != (char)other;
			free(blocks[other][n]);
		}
		pthread_barrier_wait(&together);
	}
	return NULL;
}

int main(void)
{
	pthread_t threads[THREADS];
	int all = 0;
	pthread_barrier_init(&together, NULL, THREADS);
	for (size_t n = 0; n < THREADS; n++)
		pthread_create(&threads[n], NULL, work, (void *)n);
	for (int n = 0; n < THREADS; n++) {
		pthread_join(threads[n], NULL);
		all += wrong[n];
	}
	puts(all ? "wrong" : "well");
	return all != 0;
}
