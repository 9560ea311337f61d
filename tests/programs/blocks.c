/* Allocators at work: blocks of all sizes are made, grown, shrunk and freed by four threads, and the
 * allocator gives memory back in between (trim, munmap, madvise). One block lives on, with a counter. */
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 300, ROUNDS = 3000, THREADS = 4 };
long *counter;
static unsigned long damages[THREADS];

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

static void *work(void *number)
{
	unsigned long n = (unsigned long)number, seed = n + 1, damage = 0;
	struct { unsigned char *p; size_t len; unsigned char value; } b[BLOCKS] = { { 0, 0, 0 } };

	for (int i = 0; i < ROUNDS; i++) {
		seed = seed * 6364136223846793005UL + 1442695040888963407UL;
		unsigned long r = seed >> 33, at = r % BLOCKS;
		size_t len = r % 17 == 0 ? 300000 + r % 100000 : r % 5 == 0 ? 8000 + r % 9000 : 16 + r % 500;
		if (b[at].p && (b[at].p[0] != b[at].value || b[at].p[b[at].len - 1] != b[at].value))
			damage++; /* another owner wrote there */
		if (r % 3 == 0) {
			free(b[at].p);
			b[at].p = calloc(1, len);
			for (size_t k = 0; k < len; k += 97)
				damage += b[at].p[k] != 0;
		} else {
			b[at].p = realloc(b[at].p, len);
			if (b[at].len && b[at].p[0] != b[at].value)
				damage++; /* realloc keeps the content */
		}
		b[at].len = len;
		b[at].value = (unsigned char)r;
		b[at].p[0] = b[at].p[len - 1] = b[at].value;
		if (n == 0 && i % 100 == 0) {
			++*counter;
			malloc_trim(0);
		}
	}
	for (int i = 0; i < BLOCKS; i++)
		free(b[i].p);
	damages[n] = damage;
	return NULL;
}

int main(void)
{
	pthread_t threads[THREADS];
	unsigned long bad = 0;

	counter = calloc(1, sizeof(*counter));
	ready();
	for (unsigned long i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, work, (void *)i);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < THREADS; i++)
		bad += damages[i] != 0;
	printf("blocks: counter %ld, %lu of %d threads found damage\n", *counter, bad, THREADS);
	return bad != 0;
}
