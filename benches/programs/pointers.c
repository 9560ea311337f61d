/* Times a pointer that changes, and a store through it: pointers COUNT PLACES THREADS
 *
 *   PLACES   how many blocks it points to, one after the other, each on a page of its own
 *   THREADS  how many others sleep meanwhile
 */
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "measure.h"

struct block {
	long padding[4], value;
};

_Alignas(4096) struct block *volatile pointer;

static void *sleeper(void *unused)
{
	pause();
	return unused;
}

int main(int argc, char **argv)
{
	long count = argc > 1 ? atol(argv[1]) : 10000;
	int places = argc > 2 ? atoi(argv[2]) : 2, threads = argc > 3 ? atoi(argv[3]) : 0;
	char *blocks = aligned_alloc(4096, 4096L * places);
	struct moment start;

	for (int i = 0; i < places; i++)
		((struct block *)(blocks + 4096L * i))->value = -1;
	for (int i = 0; i < threads; i++) {
		pthread_t thread;
		pthread_create(&thread, NULL, sleeper, NULL);
	}
	ready();
	/* Each page is moved once: not what we time. */
	for (int i = 0; i < places; i++)
		pointer = (struct block *)(blocks + 4096L * i);
	start = moment();
	for (long i = 0; i < count; i++) {
		pointer = (struct block *)(blocks + 4096L * (i % places));
		*(volatile long *)&pointer->value = i;
	}
	report(start, count);
	return 0;
}
