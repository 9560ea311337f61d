/* Signals that usually report a failed instruction, and an unused one, sent like any other signal:
 * delivered, blocked, fetched, waited for, in the middle of a system call. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

long watched;
sigset_t old; /* written by the kernel, or by the stub in its place */
stack_t stack;
static volatile int count, code, value, inside, outside;

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

static void on_signal(int number, siginfo_t *info, void *context)
{
	sigset_t now;

	sigprocmask(SIG_BLOCK, NULL, &now);
	inside = sigismember(&now, SIGWINCH);
	outside = sigismember(&((ucontext_t *)context)->uc_sigmask, number);
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
	struct epoll_event event = { .events = EPOLLIN };
	siginfo_t info;
	int pipes[2], queue = epoll_create1(0);
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
	/* It is gone all the same where the kernel cannot tell of it. */
	raise(number);
	told("fetched to nowhere", sigtimedwait(&set, (siginfo_t *)8, &second));
	told("nothing to fetch", sigtimedwait(&set, &info, &second));
	/* Calls under another mask, which the handler runs under, too, before the program's own is back. */
	sigaddset(&none, SIGWINCH);
	second.tv_sec = 3;
	raise(number);
	told("suspended", sigsuspend(&none));
	printf("  masks: %d %d\n", inside, outside);
	for (int call = 0; call < 3; call++) {
		inside = outside = -1;
		raise(number);
		if (call == 0)
			told("ppoll", ppoll(NULL, 0, &second, &none));
		else if (call == 1)
			told("pselect", pselect(0, NULL, NULL, NULL, &second, &none));
		else
			told("epoll_pwait", epoll_pwait(queue, &event, 1, 3000, &none));
		printf("  masks: %d %d\n", inside, outside);
	}
	/* A ready descriptor comes first: the signal stays pending. */
	if (pipe(pipes) || write(pipes[1], "text", 4) != 4 || epoll_ctl(queue, EPOLL_CTL_ADD, pipes[0], &event))
		return;
	struct pollfd ready_fd = { .fd = pipes[0], .events = POLLIN };
	raise(number);
	told("ppoll, ready", ppoll(&ready_fd, 1, &second, &none));
	told("epoll_pwait, ready", epoll_pwait(queue, &event, 1, 3000, &none));
	close(pipes[0]);
	close(pipes[1]);
	told("epoll_pwait, at once", epoll_pwait(queue, &event, 1, 0, &none));
	close(queue);
	told("suspended again", sigsuspend(&none));
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
	const int numbers[] = { SIGSEGV, SIGBUS, SIGTRAP, SIGSYS, SIGILL, SIGFPE, SIGUSR1, SIGSTKFLT, 62, 63, 64 };

	setvbuf(stdout, NULL, _IOLBF, 0);
	ready();
	sigaltstack(NULL, &stack);
	for (unsigned i = 0; i < sizeof numbers / sizeof *numbers; i++)
		try(numbers[i]);
	return 0;
}
