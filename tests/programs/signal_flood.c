/* Stores to watched memory while signals flood the thread, among them those that ulpf lives on:
 *
 *   signal_flood STORES
 *
 * Says what it has counted and computed, in general and in vector registers. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>

#define QUEUED 5000
volatile long cells[3];
_Alignas(4096) unsigned char whole[2 * 4096];
long taken, queued_taken;

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

/* One instruction each: a handler may interrupt another one. */
static void take(int sig)
{
	__asm__ volatile("incq %0\n\tincq %1" : "+m"(taken), "+m"(cells[2]));
	if (sig == SIGRTMIN + 3)
		__asm__ volatile("incq %0" : "+m"(queued_taken));
}

/* Four accesses to a whole page, by instructions of all kinds. Each is a hit. They leave memory as it was if
 * i is odd or 0; if i % 4 is not 0 or i is 0; never; always. */
static __attribute__((noinline)) void four(volatile long *page, long i)
{
	typedef long pair __attribute__((vector_size(16)));
	pair both = {i / 4, i / 4};
	unsigned before = 1;

	page[0] = i / 2;
	__asm__ volatile("movups %1, %0" : "=m"(*(pair *)(page + 8)) : "x"(both));
	__asm__ volatile("xaddl %0, %1" : "+c"(before), "+m"(page[32]));
	__asm__ volatile("shlq %%cl, %0" : "+m"(page[64]) : "c"(before | 1));
	if (before != i)
		abort();
}

static void *send_signals(void *thread)
{
	sigset_t all;

	/* Process-wide signals (SIGALRM) go to the other thread, because two threads must not run `take` at once. */
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, NULL);
	for (int i = 0; i < QUEUED; i++) {
		while (pthread_sigqueue((pthread_t)thread, SIGRTMIN + 3, (union sigval){0}))
			;
		if (i % 4 == 0)
			pthread_kill((pthread_t)thread, i % 8 ? SIGSEGV : SIGTRAP);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	long stores = argc > 1 ? atol(argv[1]) : 100000;
	struct sigaction action = {.sa_handler = take, .sa_flags = SA_RESTART};
	struct itimerval each = {{0, 1000}, {0, 1000}};
	int signals[] = {SIGALRM, SIGRTMIN + 3, SIGSEGV, SIGTRAP};
	double up = 1.5, down = 2.25;
	unsigned long mixed = 0;
	long aside[128] = {0};
	pthread_t sender;
	sigset_t all;

	for (unsigned n = 0; n < sizeof signals / sizeof *signals; n++)
		sigaction(signals[n], &action, NULL);
	ready();
	setitimer(ITIMER_REAL, &each, NULL);
	pthread_create(&sender, NULL, send_signals, (void *)pthread_self());
	for (long i = 0; i < stores; i++) {
		cells[0] = i;
		up = up * 1.0000001 + down;
		down = down * 0.9999999;
		mixed = mixed * 31 + i;
		cells[1] += 1;
		four((long *)(whole + 4096), i);
		/* The same instructions, where nothing is watched, for long enough to be left alone. */
		if (i % 5000 == 0)
			for (long n = 0; n < 20000; n++)
				four(aside, n);
		aside[32] = 0;
	}
	each = (struct itimerval){0};
	setitimer(ITIMER_REAL, &each, NULL);
	pthread_join(sender, NULL);
	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, NULL);
	printf("signal_flood: %ld stores, %f %f %lx, %ld of %d queued, %s\n", cells[1], up, down, mixed, queued_taken, QUEUED,
	       cells[2] == taken ? "all taken" : "some lost");
	return 0;
}
