// Correct, with threads, and many ways to ask for memory. Built with a sanitizer, whose allocator is its own.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *work(void *unused)
{
	(void)unused;
	for (int n = 1; n < 300; n++) {
		char *block = malloc(n), *copy, *aligned;
		memset(block, n, n);
		block = realloc(block, 2 * n);
		block[2 * n - 1] = 0;
		copy = strdup("a copy");
		aligned = aligned_alloc(64, 64);
		free(aligned);
		free(copy);
		free(block);
	}
	return NULL;
}

int main(void)
{
	pthread_t threads[3];
	for (int n = 0; n < 3; n++)
		pthread_create(&threads[n], NULL, work, NULL);
	for (int n = 0; n < 3; n++)
		pthread_join(threads[n], NULL);
	puts("done");
	return 7;
}
