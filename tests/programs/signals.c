/* Handlers, masks, an interval timer, an alternate stack, siginfo, sigsuspend, restarts. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

volatile int ticks, user_signals, user_value, on_alternate;
static char *alternate;
static sigjmp_buf recovery;

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

static void on_alarm(int number)
{
	(void)number;
	ticks++;
}

static void on_user(int number, siginfo_t *info, void *context)
{
	char here;

	(void)number;
	(void)context;
	user_signals++;
	user_value = info->si_value.sival_int;
	on_alternate = &here > alternate && &here < alternate + 65536;
}

static void on_fault(int number, siginfo_t *info, void *context)
{
	(void)context;
	siglongjmp(recovery, number == SIGSEGV && info->si_addr == (void *)0x10 ? 1 : 2);
}

int main(void)
{
	struct sigaction action = { .sa_handler = on_alarm, .sa_flags = SA_RESTART };
	stack_t stack = { .ss_size = 65536 }, seen;
	struct itimerval timer = { { 0, 2000 }, { 0, 2000 } };
	sigset_t block, old, pending;
	int recovered, was_pending;

	alternate = malloc(65536);
	stack.ss_sp = alternate;
	sigaltstack(&stack, NULL);
	sigaction(SIGALRM, &action, NULL);
	action.sa_sigaction = on_user;
	action.sa_flags = SA_SIGINFO | SA_ONSTACK;
	sigaction(SIGUSR1, &action, NULL);
	action.sa_sigaction = on_fault;
	sigaction(SIGSEGV, &action, NULL);
	ready();

	sigqueue(getpid(), SIGUSR1, (union sigval){ .sival_int = 42 });

	sigemptyset(&block);
	sigaddset(&block, SIGUSR1);
	sigprocmask(SIG_BLOCK, &block, &old);
	sigqueue(getpid(), SIGUSR1, (union sigval){ .sival_int = 43 });
	sigpending(&pending);
	was_pending = sigismember(&pending, SIGUSR1) && user_signals == 1;
	sigsuspend(&old);
	sigprocmask(SIG_SETMASK, &old, NULL);

	recovered = sigsetjmp(recovery, 1);
	if (!recovered)
		*(volatile int *)0x10 = 1;

	setitimer(ITIMER_REAL, &timer, NULL);
	while (ticks < 20)
		pause();
	memset(&timer, 0, sizeof timer);
	setitimer(ITIMER_REAL, &timer, NULL);

	sigaltstack(NULL, &seen);
	sigaction(SIGSEGV, NULL, &action);
	printf("signals: ticks %s, user %d value %d alternate %d pending %d recovered %d stack %s handler %s\n",
	       ticks >= 20 ? "ok" : "few", user_signals, user_value, on_alternate, was_pending,
	       recovered, seen.ss_sp == alternate && seen.ss_size == 65536 ? "ok" : "lost",
	       action.sa_sigaction == on_fault ? "ok" : "lost");
	return 0;
}
