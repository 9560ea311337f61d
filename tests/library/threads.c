/* Many threads, and watches that come and go. */
#include "checks.h"
#include <time.h>

#define THREADS 8
/* Limits in rounds and in seconds: a simulated machine takes a hundred times as long. */
#define ROUNDS 3000
#define SECONDS 60
static long *shared_words;
static time_t began;
static void *bump(void *arg)
{
	long *mine = shared_words + 1 + (long)arg, rounds = 0;
	for (; rounds < ROUNDS && time(NULL) < began + SECONDS; rounds++) {
		__atomic_fetch_add(shared_words, 1, __ATOMIC_RELAXED);
		++*(volatile long *)mine;
	}
	return (void *)rounds;
}
CASE(threads)
{
	shared_words = (long *)pages(1);
	long all = insert_watchpoint(shared_words, 8, ULPF_WRITE), one = insert_watchpoint(shared_words + 3, 8, ULPF_WRITE);
	OK(all); OK(one);
	pthread_t t[THREADS];
	began = time(NULL);
	for (long i = 0; i < THREADS; i++)
		pthread_create(&t[i], NULL, bump, (void *)i);
	long rounds[THREADS], sum = 0;
	for (int i = 0; i < THREADS; i++) {
		pthread_join(t[i], (void **)&rounds[i]);
		CHECK(rounds[i] > 0, "thread %d has not run", i);
		sum += rounds[i];
	}
	EQ(*shared_words, sum);
	EQ(counts(all).hits, sum);
	EQ(counts(one).hits, rounds[2]);
	EQ(stats().opened, 0);
}

/* Threads write while watches on their pages, and their neighbours', come and go: nothing is lost. */
static volatile int stop_now;
static void *bump_until(void *arg)
{
	volatile long *mine = arg;
	while (!stop_now)
		++mine[0], ++mine[1], mine[2] = mine[0] + mine[1];
	return NULL;
}
CASE(changes_under_way)
{
	char *at = pages(6);
	pthread_t t[4];
	for (long i = 0; i < 4; i++)
		pthread_create(&t[i], NULL, bump_until, at + PAGE * (i + 1) + 64 * i);
	for (int i = 0; i < 200; i++) {
		long a = insert_watchpoint(at + PAGE * (1 + i % 4) + 2048, 8, ULPF_WRITE);
		long b = insert_watchpoint(at + PAGE * (1 + i % 3) + 64 * (i % 3), 8, i % 2 ? ULPF_WRITE : ULPF_ACCESS);
		OK(a); OK(b);
		usleep(200);
		OK(delete_watchpoint(a));
		OK(delete_watchpoint(b));
		if (i % 50 == 49)
			OK(ulpf_unregister());
	}
	stop_now = 1;
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
	for (long i = 0; i < 4; i++) {
		long *mine = (long *)(at + PAGE * (i + 1) + 64 * i);
		EQ(mine[0], mine[1]);
		EQ(mine[2], mine[0] + mine[1]);
		CHECK(mine[0] > 0, "thread %ld never ran", i);
	}
}
