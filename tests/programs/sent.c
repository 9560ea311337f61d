/* Signals that usually say that an instruction has failed, and one that nobody uses, sent like any other:
 * delivered, blocked, fetched, waited for, in the middle of a system call. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

long watched;
sigset_t old; /* written by the kernel, or by who answers in its place */
stack_t stack;
static volatile int count, code, value;

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

static void on_signal(int number, siginfo_t *info, void *context)
{
	(void)number;
	(void)context;
	count++;
	code = info->si_code;
	value = info->si_value.sival_int;
}

static void told(const char *what, long result)
{
	printf("  %-34s %ld, %s, count %d\n", what, result, result < 0 ? strerrorname_np(errno) : "no error", count);
}

static void try(int number)
{
	struct sigaction action = { .sa_sigaction = on_signal, .sa_flags = SA_SIGINFO };
	struct timespec second = { 1, 0 };
	sigset_t set, none, pending;
	siginfo_t info;
	int pipes[2];
	char text[8];
	pid_t child;
	long result;

	count = code = value = 0;
	sigemptyset(&none);
	sigemptyset(&set);
	sigaddset(&set, number);
	sigaction(number, &action, NULL);
	printf("signal %d\n", number);
	told("raise", raise(number));
	told("kill", kill(getpid(), number));
	told("sigqueue", sigqueue(getpid(), number, (union sigval){ .sival_int = 7 }));
	printf("  from sigqueue: %d %d\n", code == SI_QUEUE, value);

	sigprocmask(SIG_BLOCK, &set, &old);
	told("blocked", raise(number));
	told("blocked, twice", raise(number));
	sigpending(&pending);
	told("is it pending?", sigismember(&pending, number));
	sigprocmask(SIG_SETMASK, &old, NULL);
	told("unblocked", 0);

	sigprocmask(SIG_BLOCK, &set, NULL);
	raise(number);
	told("fetched", sigtimedwait(&set, &info, &second));
	printf("  from tgkill: %d\n", info.si_code == SI_TKILL);
	second.tv_sec = 0;
	told("nothing to fetch", sigtimedwait(&set, &info, &second));
	raise(number);
	told("suspended", sigsuspend(&none));
	sigpending(&pending);
	told("is it pending?", sigismember(&pending, number));

	/* One that comes while a call waits that does not want it. */
	if (pipe(pipes))
		return;
	child = fork();
	if (child == 0) {
		second = (struct timespec){ 0, 50000000 };
		nanosleep(&second, NULL);
		kill(getppid(), number);
		nanosleep(&second, NULL);
		_exit(write(pipes[1], "text", 4) != 4);
	}
	told("read", read(pipes[0], text, sizeof text));
	waitpid(child, NULL, 0);
	sigprocmask(SIG_SETMASK, &old, NULL);
	told("unblocked", 0);

	/* One that comes while a call waits that does. */
	child = fork();
	if (child == 0) {
		second = (struct timespec){ 0, 50000000 };
		nanosleep(&second, NULL);
		kill(getppid(), number);
		_exit(0);
	}
	result = read(pipes[0], text, sizeof text);
	told("interrupted read", result);
	waitpid(child, NULL, 0);
	close(pipes[0]);
	close(pipes[1]);
	watched++;
}

int main(void)
{
	const int numbers[] = { SIGSEGV, SIGBUS, SIGTRAP, SIGSYS, SIGILL, SIGFPE, SIGUSR1, 62, 63, 64 };

	setvbuf(stdout, NULL, _IOLBF, 0);
	ready();
	sigaltstack(NULL, &stack);
	for (unsigned i = 0; i < sizeof numbers / sizeof *numbers; i++)
		try(numbers[i]);
	return 0;
}
