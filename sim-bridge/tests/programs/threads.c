// Four threads add to one counter under a lock, and each to its own; a condition variable, and time-outs.
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static long locked;
static atomic_long added;
static __thread long own;
static int ready;

static void *work(void *arg)
{
	for (int i = 0; i < 20000; i++) {
		pthread_mutex_lock(&lock);
		locked++;
		pthread_mutex_unlock(&lock);
		added++;
		own++;
	}
	pthread_mutex_lock(&lock);
	ready++;
	pthread_cond_signal(&changed);
	pthread_mutex_unlock(&lock);
	return (void *)own;
}

int main(int argc, char **argv)
{
	pthread_t threads[4];
	long sum = 0;
	struct timespec t;

	for (int i = 0; i < 4; i++)
		if (pthread_create(&threads[i], NULL, work, NULL))
			return 1;
	pthread_mutex_lock(&lock);
	while (ready < 4)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
	for (int i = 0; i < 4; i++) {
		void *result;

		pthread_join(threads[i], &result);
		sum += (long)result;
	}
	clock_gettime(CLOCK_REALTIME, &t);
	t.tv_sec += 3;
	pthread_mutex_lock(&lock);
	printf("%ld %ld %ld, time-out %d\n", locked, (long)added, sum,
	       pthread_cond_timedwait(&changed, &lock, &t) == ETIMEDOUT);
	fflush(stdout);
	if (argc > 1)	// for ever
		pthread_mutex_lock(&lock);
	return 0;
}
