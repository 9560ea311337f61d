/* Times a pointer that changes, and a store through it: pointers COUNT PLACES THREADS [NODES]
 *
 *   PLACES   number of blocks that it points to in turn, each on a page of its own.
 *   THREADS  number of other threads, which sleep meanwhile.
 *   NODES    instead of the pointer: length of a list into which a node is linked and unlinked.
 */
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "measure.h"

struct block {
	long padding[4], value;
};

struct node {
	struct node *volatile next;
	volatile long value;
	long padding[6];
};

_Alignas(4096) struct block *volatile pointer;
struct node *volatile list;

static void link_and_unlink(long count, int nodes)
{
	struct node *all = calloc(nodes + 1, sizeof *all), *spare = &all[nodes];
	struct moment start;

	for (int i = 0; i < nodes; i++)
		all[i].next = i + 1 < nodes ? &all[i + 1] : NULL;
	list = all;
	ready();
	start = moment();
	for (long i = 0; i < count; i++) {
		if (i % 2) {
			list->next = spare->next;
		} else {
			spare->next = list->next;
			list->next = spare;
		}
		spare->value = i;
	}
	report(start, count);
}

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

	if (argc > 4) {
		link_and_unlink(count, atoi(argv[4]));
		return 0;
	}
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
