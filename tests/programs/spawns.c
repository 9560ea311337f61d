/* Children made with clone3(2) as newer C libraries make them, and exec under a storm of signals. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef CLONE_CLEAR_SIGHAND
#define CLONE_CLEAR_SIGHAND 0x100000000ULL
#endif

/* On one page with what is watched. */
static struct {
	long watched;
	struct clone_args args;
	char more[64];
	int parent_tid, child_tid, pidfd;
} here __attribute__((aligned(4096)));
long *watched = &here.watched;
static char stack[65536] __attribute__((aligned(16)));

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

static void on_signal(int number)
{
	(void)number;
}

/* clone3 on a stack of the child's own: nothing of this frame may be needed in the child but `child`. */
__attribute__((noinline)) static long make(size_t size, void (*child)(void))
{
	long result;

	__asm__ volatile("mov %4, %%r12\n\t"
			 "syscall\n\t"
			 "test %%rax, %%rax\n\t"
			 "jnz 1f\n\t"
			 "xor %%ebp, %%ebp\n\t"
			 "and $-16, %%rsp\n\t"
			 "call *%%r12\n\t"
			 "ud2\n"
			 "1:"
			 : "=a"(result)
			 : "a"((long)SYS_clone3), "D"(&here.args), "S"(size), "r"(child)
			 : "rcx", "r11", "r12", "memory");
	return result;
}

static int ended(pid_t child)
{
	int status;

	while (waitpid(child, &status, 0) != child)
		if (errno != EINTR)
			return -errno;
	return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static int action(int number)
{
	struct sigaction seen;

	sigaction(number, NULL, &seen);
	return seen.sa_handler == SIG_DFL ? 0 : seen.sa_handler == SIG_IGN ? 1 : 2;
}

/* Exits with a status that says whether two signals are default, ignored or handled. */
static void tells_actions(void)
{
	_exit(100 + action(SIGUSR1) * 10 + action(SIGUSR2));
}

static void dies(void)
{
	kill(getpid(), SIGUSR1);
	_exit(1);
}

static void execs(void)
{
	execl("/proc/self/exe", "spawns", "mask", NULL);
	_exit(99);
}

/* A forked child may begin on another stack, too. */
static int own_stack;

static void tell(const char *name, size_t size, unsigned long flags, void (*child)(void))
{
	long result;

	memset(&here.args, 0, sizeof here.args);
	here.parent_tid = here.child_tid = here.pidfd = -1;
	here.args.flags = flags | CLONE_PARENT_SETTID | CLONE_PIDFD;
	here.args.parent_tid = (unsigned long)&here.parent_tid;
	here.args.pidfd = (unsigned long)&here.pidfd;
	here.args.exit_signal = SIGCHLD;
	if (flags & CLONE_VM || own_stack) {
		here.args.stack = (unsigned long)stack;
		here.args.stack_size = sizeof stack;
	}
	result = make(size, child);
	if (result < 0)
		printf("%-24s error %ld\n", name, result);
	else
		printf("%-24s %d, its id %s, descriptor %s\n", name, ended(result),
		       here.parent_tid == result ? "told" : "not told", here.pidfd > 0 ? "told" : "not told");
	if (here.pidfd > 0)
		close(here.pidfd);
}

static int on_stack(void *of)
{
	char here[2000];

	memset(here, 7, sizeof here);
	return here > (char *)of && here[1] == 7 && here < (char *)of + sizeof stack;
}

static void exits(void)
{
	syscall(SYS_exit_group, 3);
}

/* A task with our memory that has ended, but for its status. */
static void zombie(void)
{
	siginfo_t info;
	long child;

	memset(&here.args, 0, sizeof here.args);
	here.args.flags = CLONE_VM;
	here.args.exit_signal = SIGCHLD;
	here.args.stack = (unsigned long)stack;
	here.args.stack_size = sizeof stack;
	child = make(sizeof here.args, exits);
	waitid(P_PID, child, &info, WEXITED | WNOWAIT);
	madvise(&here, 4096, MADV_DONTNEED); /* everybody has to rest for it */
	printf("zombie: %d\n", ended(child));
}

static void storm(int rounds)
{
	pid_t sender, child;
	sigset_t none;
	int codes = 0;

	sigemptyset(&none);
	signal(SIGWINCH, on_signal);
	setpgid(0, 0);
	sender = fork();
	if (sender == 0) {
		signal(SIGWINCH, SIG_IGN);
		for (;;)
			kill(0, SIGWINCH);
	}
	for (int i = 0; i < rounds; i++) {
		child = vfork();
		if (child == 0)
			execs();
		codes += ended(child);
	}
	kill(sender, SIGKILL);
	ended(sender);
	printf("storm: %d programs began with signals blocked\n", codes);
}

/* A vfork child that waits for a file; then, which signals are caught here. */
static void late(const char *path)
{
	char line[256];
	pid_t child = vfork();

	if (child == 0) {
		struct timespec tick = { 0, 10000000 };
		while (access(path, F_OK))
			nanosleep(&tick, NULL);
		_exit(4);
	}
	printf("late: %d\n", ended(child));
	FILE *status = fopen("/proc/self/status", "r");
	while (fgets(line, sizeof line, status))
		if (!strncmp(line, "SigCgt", 6))
			fputs(line, stdout);
}

__attribute__((noinline)) void called(void)
{
	__asm__ volatile("");
}

int main(int argc, char **argv)
{
	const unsigned long vm = CLONE_VM | CLONE_VFORK, clear = CLONE_CLEAR_SIGHAND;
	sigset_t blocked;
	pid_t child;

	if (argc > 1 && !strcmp(argv[1], "mask")) {
		sigprocmask(SIG_BLOCK, NULL, &blocked);
		return !sigisemptyset(&blocked);
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	ready();
	if (argc > 1 && !strcmp(argv[1], "storm")) {
		storm(atoi(argv[2]));
		return 0;
	}
	if (argc > 1 && !strcmp(argv[1], "late")) {
		late(argv[2]);
		return 0;
	}
	if (argc > 1 && !strcmp(argv[1], "chroot")) {
		/* Where there is no /proc. */
		if (chdir(argv[2]) || chroot("."))
			return 1;
		child = fork();
		if (child == 0) {
			called();
			_exit(7);
		}
		printf("chroot: %d\n", ended(child));
		return 0;
	}
	signal(SIGUSR1, on_signal);
	signal(SIGUSR2, SIG_IGN);
	tell("vfork", sizeof here.args, vm, tells_actions);
	tell("vfork without handlers", sizeof here.args, vm | clear, tells_actions);
	tell("fork", sizeof here.args, 0, tells_actions);
	tell("fork without handlers", sizeof here.args, clear, tells_actions);
	tell("vfork that dies", sizeof here.args, vm | clear, dies);
	tell("fork that dies", sizeof here.args, clear, dies);
	tell("vfork and exec", sizeof here.args, vm | clear, execs);
	tell("handlers both ways", sizeof here.args, vm | CLONE_SIGHAND | clear, tells_actions);
	tell("first version", 64, vm | clear, tells_actions);
	tell("too short", 56, vm, tells_actions);
	tell("from the future", sizeof here.args + 40, vm, tells_actions);
	here.more[39] = 1;
	tell("and it matters", sizeof here.args + 40, vm, tells_actions);
	tell("longer than a page", 5000, vm, tells_actions);
	own_stack = 1;
	tell("fork to a stack", sizeof here.args, 0, tells_actions);
	tell("without handlers", sizeof here.args, clear, tells_actions);
	own_stack = 0;
	printf("clone to a stack: %d\n", ended(clone(on_stack, stack + sizeof stack, SIGCHLD, stack)));
	printf("own handlers: %d %d\n", action(SIGUSR1), action(SIGUSR2));
	zombie();
	here.watched++;
	return 0;
}
