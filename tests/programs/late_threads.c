/* Waits for a line, then makes threads, which make threads; a thread-local lies beside what the kernel writes for
   restartable sequences (rseq). */
#include <pthread.h>
#include <stdio.h>
#include <time.h>

int started;
static __thread volatile long turns;

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void *inner(void *unused)
{
	__atomic_add_fetch(&started, 1, __ATOMIC_SEQ_CST);
	return unused;
}

static void *outer(void *unused)
{
	pthread_t thread;

	__atomic_add_fetch(&started, 1, __ATOMIC_SEQ_CST);
	if (pthread_create(&thread, NULL, inner, NULL) == 0)
		pthread_join(thread, NULL);
	return unused;
}

int main(void)
{
	pthread_t threads[4];
	double end;

	printf("%p\n", (void *)&turns);
	fflush(stdout);
	getchar();
	/* Long enough to be preempted. */
	for (end = now() + 0.2; now() < end; turns++)
		;
	for (int i = 0; i < 4; i++)
		if (pthread_create(&threads[i], NULL, outer, NULL))
			return 1;
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	printf("%d threads\n", started);
	return 0;
}
