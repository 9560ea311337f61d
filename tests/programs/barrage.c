/* Signals in great numbers strike a thread that works on a watched page: each must arrive once and in
 * order, and no register may change under it. Prints no times and no addresses. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>

static struct {
	_Alignas(4096) volatile long watched;
	volatile long beside, in_handler, untouched;
} page;

static volatile int next, wrong, alarms;
static int count;
static pthread_t worker;

static void on_queued(int number, siginfo_t *info, void *context)
{
	(void)number;
	(void)context;
	if (info->si_value.sival_int != next)
		wrong++;
	next++;
	page.in_handler++;
}

static void on_alarm(int number)
{
	(void)number;
	alarms++;
	page.in_handler++;
}

static void *send(void *unused)
{
	for (int i = 0; i < count; i++) {
		union sigval value = {.sival_int = i};

		while (i - next > 500) /* the kernel looks through the whole queue at every fault */
			sched_yield();
		while (pthread_sigqueue(worker, SIGRTMIN, value) == EAGAIN)
			sched_yield();
	}
	return unused;
}

int main(int argc, char **argv)
{
	struct sigaction queued = {.sa_sigaction = on_queued, .sa_flags = SA_SIGINFO | SA_RESTART};
	struct sigaction alarmed = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
	struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
	pthread_t sender;
	sigset_t all;
	long rounds = 0;
	double sum = 0;

	/* The two do not interrupt each other. */
	sigaddset(&queued.sa_mask, SIGALRM);
	sigaddset(&alarmed.sa_mask, SIGRTMIN);
	count = argc > 1 ? atoi(argv[1]) : 20000;
	worker = pthread_self();
	sigaction(SIGRTMIN, &queued, NULL);
	sigaction(SIGALRM, &alarmed, NULL);
	/* The sender takes no signals: its mask is inherited. */
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, NULL);
	pthread_create(&sender, NULL, send, NULL);
	pthread_sigmask(SIG_UNBLOCK, &all, NULL);
	setitimer(ITIMER_REAL, &often, NULL);
	while (next < count || rounds < 20000) {
		page.beside++;
		sum += 0.5;
		if (++rounds % 64 == 0)
			page.watched = rounds;
	}
	setitimer(ITIMER_REAL, &never, NULL);
	pthread_join(sender, NULL);
	printf("barrage: %d signals, %d out of order; %s, %s, %s\n", next, wrong,
	       page.beside == rounds ? "every store done once" : "stores lost",
	       sum == rounds * 0.5 ? "vector registers as they were" : "vector registers changed",
	       page.in_handler == next + alarms ? "every handler ran once" : "handlers lost");
	return 0;
}
