/* Faults anywhere: in the allocator, in signal handlers; and the program's own. */
#include "checks.h"

/* ---- faults anywhere ---- */

CASE(in_malloc)
{
	/* The allocator's own structures lie on watched pages. */
	char *before = malloc(100);
	long id = insert_watchpoint((void *)((unsigned long)before & ~(PAGE - 1ul)), PAGE, ULPF_ACCESS);
	OK(id);
	ulpf_set_handler(count_call, NULL);
	for (int i = 0; i < 2000; i++) {
		char *p = malloc(i % 300 + 1), *q = malloc(24);
		memset(p, i, i % 300 + 1);
		free(p);
		p = realloc(q, 200 + i % 100);
		free(p);
	}
	CHECK(counts(id).hits > 1000, "%ld hits", (long)counts(id).hits);
	CHECK(calls > 1000, "%ld calls", calls);
	OK(delete_watchpoint(id));
	free(before);
}

static volatile int signals;
static void on_signal(int signo)
{
	(void)signo;
	for (int i = 0; i < 10; i++)
		target[i]++;
	signals++;
}
CASE(in_signal_handlers)
{
	target = pages(1);
	long id = insert_watchpoint((void *)target, 4, ULPF_WRITE);
	OK(id);
	signal(SIGUSR1, on_signal);
	for (int i = 0; i < 100; i++) {
		raise(SIGUSR1);
		target[0]++;
	}
	EQ(signals, 100);
	EQ(target[0], (char)200);
	EQ(counts(id).hits, 500);
}

CASE(blocked)
{
	target = pages(1);
	long id = insert_watchpoint((void *)target, 4, ULPF_WRITE);
	OK(id);
	sigset_t all, was;
	sigfillset(&all);
	EQ(sigprocmask(SIG_SETMASK, &all, &was), 0);
	target[0] = 1;
	EQ(pthread_sigmask(SIG_SETMASK, NULL, &all), 0);
	EQ(sigismember(&all, SIGUSR1), 1);
	EQ(sigismember(&all, SIGSEGV), 0);
	struct sigaction sa = { .sa_handler = on_signal };
	sigfillset(&sa.sa_mask);
	sigaction(SIGUSR2, &sa, NULL);
	sigprocmask(SIG_SETMASK, &was, NULL);
	raise(SIGUSR2);
	EQ(counts(id).hits, 1 + 4);
}

/* ---- the program's own handlers ---- */

static char *unmapped;
static void on_segv(int signo, siginfo_t *info, void *context)
{
	(void)context;
	CHECK(info->si_addr == unmapped, "si_addr %p, not %p", info->si_addr, unmapped);
	caught += signo;
	siglongjmp(back, 1);
}
CASE(own_faults)
{
	struct sigaction sa = { .sa_sigaction = on_segv, .sa_flags = SA_SIGINFO }, old;
	sigaction(SIGSEGV, &sa, NULL);
	target = pages(1);
	long id = insert_watchpoint((void *)target, 4, ULPF_WRITE);
	OK(id);
	unmapped = pages(2);
	munmap(unmapped, 2 * PAGE);
	for (int i = 0; i < 3; i++) {
		if (!sigsetjmp(back, 1))
			*(volatile char *)unmapped = 1;
		target[1]++;
	}
	EQ(caught, 3 * SIGSEGV);
	/* One that comes later displaces the earlier one, not us. */
	EQ(sigaction(SIGSEGV, NULL, &old), 0);
	CHECK(old.sa_sigaction == on_segv, "sigaction tells of another handler");
	CHECK(signal(SIGSEGV, SIG_DFL) == (sighandler_t)(void *)on_segv, "signal tells of another handler");
	target[1]++;
	EQ(sigaction(SIGSEGV, &sa, NULL), 0);
	if (!sigsetjmp(back, 1))
		*(volatile char *)unmapped = 1;
	EQ(caught, 4 * SIGSEGV);
	/* Read-only memory of the program's own, faulted by a store that a guard has caught first. */
	EQ(counts(id).hits, 4);
	signal(SIGSEGV, SIG_DFL);
	pid_t child = fork();
	if (child == 0) {
		*(volatile char *)unmapped = 1;
		_exit(0);
	}
	int status;
	waitpid(child, &status, 0);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV, "status %#x", status);
}
static void on_fpe(int signo, siginfo_t *info, void *context)
{
	(void)info, (void)context;
	caught += signo;
	siglongjmp(back, 1);
}
CASE(division)
{
	/* The division happens in generated code; the program sees its own. */
	struct sigaction sa = { .sa_sigaction = on_fpe, .sa_flags = SA_SIGINFO };
	sigaction(SIGFPE, &sa, NULL);
	volatile int *zero = (int *)pages(1);
	long id = insert_watchpoint((void *)zero, 4, ULPF_READ);
	OK(id);
	if (!sigsetjmp(back, 1))
		asm volatile("movl $7, %%eax; cltd; idivl %0" : : "m"(*zero) : "eax", "edx");
	EQ(caught, SIGFPE);
}
