/* Signals from all sides while threads store into watched memory: what an interval timer (SIGALRM), a
 * profiler (SIGPROF, 1 kHz) and the program itself (real-time signals, which never coalesce) send.
 * It counts for itself what has to arrive. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 4 };

_Alignas(4096) volatile long cells[THREADS][8];
static volatile sig_atomic_t alarms, profiles, queued, wrong;
static long stores = 200000, sent = 2000;

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

static void on_alarm(int sig)
{
	int saved = errno;

	if (sig == SIGALRM)
		__atomic_add_fetch(&alarms, 1, __ATOMIC_RELAXED);
	else
		__atomic_add_fetch(&profiles, 1, __ATOMIC_RELAXED);
	errno = saved;
}

/* Values must arrive in order, each once. */
static void on_queued(int sig, siginfo_t *info, void *context)
{
	(void)sig;
	(void)context;
	if (info->si_value.sival_int != queued)
		wrong++;
	queued++;
}

static void *worker(void *argument)
{
	long index = (long)argument;

	for (long i = 1; i <= stores; i++)
		cells[index][0] = i;
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[THREADS];
	struct sigaction action = { .sa_handler = on_alarm, .sa_flags = SA_RESTART };
	struct itimerval fast = { { 0, 1000 }, { 0, 1000 } };
	sigset_t real;
	long sum = 0;

	if (argc > 1)
		stores = atol(argv[1]);
	sigaction(SIGALRM, &action, NULL);
	sigaction(SIGPROF, &action, NULL);
	action.sa_sigaction = on_queued;
	action.sa_flags = SA_RESTART | SA_SIGINFO;
	sigaction(SIGRTMIN + 3, &action, NULL);
	sigemptyset(&real);
	sigaddset(&real, SIGRTMIN + 3);
	ready();
	pthread_sigmask(SIG_BLOCK, &real, NULL); /* the workers must not take them */
	for (long i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, worker, (void *)i);
	pthread_sigmask(SIG_UNBLOCK, &real, NULL);
	setitimer(ITIMER_REAL, &fast, NULL);
	setitimer(ITIMER_PROF, &fast, NULL);
	for (long i = 0; i < sent; i++) {
		union sigval value = { .sival_int = (int)i };

		while (sigqueue(getpid(), SIGRTMIN + 3, value))
			usleep(100); /* the queue is full */
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	while (!alarms || !profiles)
		for (volatile int i = 0; i < 10000; i++)
			;
	memset(&fast, 0, sizeof fast);
	setitimer(ITIMER_REAL, &fast, NULL);
	setitimer(ITIMER_PROF, &fast, NULL);
	for (int i = 0; i < THREADS; i++)
		sum += cells[i][0];
	printf("storm: %d queued, %d out of order, alarms %s, profiles %s, sum %ld\n", (int)queued, (int)wrong,
	       alarms ? "seen" : "lost", profiles ? "seen" : "lost", sum);
	return 0;
}
