/* A variable that is hardly ever written, on a page that is written all the time: its neighbours on
 * the stack are the loop's own. Where a debug register pays. */
#include <emmintrin.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

long *watched; /* watch -l *watched */

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

__attribute__((noinline)) static void *elsewhere(void *target)
{
	*(long *)target += 1000;
	return NULL;
}

__attribute__((noinline)) static long both(long *pair)
{
	/* One store to two neighbours. */
	_mm_storeu_si128((__m128i *)pair, _mm_set1_epi64x(0x55));
	return pair[0] + pair[1];
}

int main(int argc, char **argv)
{
	long rounds = argc > 1 ? atol(argv[1]) : 100000, every = argc > 2 ? atol(argv[2]) : 10000;
	long often = argc > 3 ? atol(argv[3]) : 0; /* stores in a row to the one that is watched */
	long reads = argc > 4 ? atol(argv[4]) : 0;
	int file = open("/proc/self/exe", O_RDONLY);
	volatile long seldom[4] = { 0, 0, 0, 0 }; /* the one to watch, and its neighbours */
	volatile long busy = 0;
	struct timespec from, to;
	pthread_t thread;
	long pair;

	watched = (long *)&seldom[0];
	ready();
	clock_gettime(CLOCK_MONOTONIC, &from);
	for (long i = 1; i <= rounds; i++) {
		busy += i;
		if (i % every == 0)
			seldom[0]++;
		if (i % every == every / 2)
			seldom[0] = seldom[0]; /* silent */
	}
	clock_gettime(CLOCK_MONOTONIC, &to);
	for (long i = 0; i < often; i++)
		seldom[0]++;
	for (long i = 0; i < reads; i++) /* the kernel's stores, from one call site */
		if (pread(file, (void *)seldom, 8, i) != 8)
			return 1;
	pthread_create(&thread, NULL, elsewhere, (void *)&seldom[0]);
	pthread_join(thread, NULL);
	pair = both((long *)seldom);
	fprintf(stderr, "bench: ns=%.2f\n", ((to.tv_sec - from.tv_sec) * 1e9 + (to.tv_nsec - from.tv_nsec)) / rounds);
	printf("hotlocal: busy %ld seldom %ld pair %ld\n", busy, seldom[0], pair);
	fflush(stdout);
	_exit(0); /* this frame is not used again */
}
