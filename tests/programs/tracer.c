/* A program that traces its children, or its parent, with ptrace(2), and says what it sees of them. All store to `counter`. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

volatile long counter;
static const char *self;

__attribute__((noinline)) static long call(long nr, long a, long b)
{
	long result;
	__asm__ volatile("syscall" : "=a"(result) : "a"(nr), "D"(a), "S"(b) : "rcx", "r11", "memory");
	return result;
}

/* Is there a file behind the code at this address? Ours has none. */
static int known(pid_t pid, uint64_t at)
{
	char name[64], line[512];
	snprintf(name, sizeof name, "/proc/%d/maps", pid);
	FILE *maps = fopen(name, "r");
	int found = 0;
	while (fgets(line, sizeof line, maps)) {
		uint64_t start, end;
		if (sscanf(line, "%lx-%lx", &start, &end) == 2 && at >= start && at < end)
			found = strchr(line, '/') || strstr(line, "[vdso]");
	}
	fclose(maps);
	return found;
}

static void tell(pid_t pid, const char *what)
{
	struct user_regs_struct regs;
	siginfo_t info;
	memset(&regs, 0, sizeof regs);
	memset(&info, 0, sizeof info);
	int registers = ptrace(PTRACE_GETREGS, pid, 0, &regs), signal = ptrace(PTRACE_GETSIGINFO, pid, 0, &info);
	printf("%s: registers %d, in a file %d, signal %d: %d code %d\n", what, registers, known(pid, regs.rip), signal, info.si_signo,
	       info.si_code > 0 ? info.si_code : -(info.si_code < 0));
}

static int wait_for(pid_t pid)
{
	int status = -1;
	if (waitpid(pid, &status, __WALL) != pid)
		printf("no stop: %s\n", strerror(errno));
	return status;
}

/* Each stop, by call, to its end. */
static void follow(pid_t pid, int status)
{
	int signal = 0;
	for (int stops = 0; !WIFEXITED(status) && !WIFSIGNALED(status) && stops < 2000; stops++) {
		int which = WSTOPSIG(status), event = status >> 16;
		signal = 0;
		if (which == (SIGTRAP | 0x80)) {
			struct user_regs_struct regs;
			ptrace(PTRACE_GETREGS, pid, 0, &regs);
			/* Calls of the C library and the loader may differ. */
			if (regs.orig_rax == SYS_getppid || regs.orig_rax == SYS_getuid || regs.orig_rax == SYS_execve || regs.orig_rax == SYS_ptrace)
				printf("call %ld, in a file %d\n", (long)regs.orig_rax, known(pid, regs.rip));
		} else {
			printf("signal %d event %d\n", which, event);
			if (!event && which != SIGTRAP && which != SIGSTOP)
				signal = which;
		}
		if (ptrace(PTRACE_SYSCALL, pid, 0, signal))
			printf("does not go on: %s\n", strerror(errno));
		status = wait_for(pid);
	}
	printf("end %d %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1, WIFSIGNALED(status) ? WTERMSIG(status) : 0);
}

static void handler(int sig)
{
	counter += sig;
}

/* What is traced. */
static void traced(void)
{
	signal(SIGUSR1, handler);
	counter++;
	for (int n = 0; n < 3; n++)
		call(SYS_getppid, 0, 0);
	raise(SIGUSR1);
	call(SYS_getuid, 0, 0);
	_exit(counter == 3 + SIGUSR1 ? 5 : 6);
}

static void trace_me(int executes)
{
	pid_t child = fork();
	counter++;
	if (!child) {
		counter++;
		printf("%ld\n", ptrace(PTRACE_TRACEME, 0, 0, 0));
		fflush(stdout);
		raise(SIGSTOP);
		counter += 0;
		if (executes)
			execl(self, self, "traced", (char *)0);
		traced();
	}
	int status = wait_for(child);
	tell(child, "stop");
	ptrace(PTRACE_SETOPTIONS, child, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL);
	printf("counter %ld\n", ptrace(PTRACE_PEEKDATA, child, &counter, 0));
	follow(child, status);
}

/* As strace does: the child stops, is seized, and goes on. */
static void seize(int executes)
{
	pid_t child = fork();
	if (!child) {
		counter += 2;
		kill(getpid(), SIGSTOP);
		if (executes)
			execl(self, self, "traced", (char *)0);
		traced();
	}
	int status;
	waitpid(child, &status, WSTOPPED);
	printf("%d %d\n", WIFSTOPPED(status), WSTOPSIG(status));
	printf("seized %ld\n", ptrace(PTRACE_SEIZE, child, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEEXEC));
	printf("interrupted %ld\n", ptrace(PTRACE_INTERRUPT, child, 0, 0));
	status = wait_for(child);
	tell(child, "stop");
	kill(child, SIGCONT);
	follow(child, status);
}

/* One that sleeps, or works. */
static void attach(int works)
{
	int fds[2];
	if (pipe(fds))
		abort();
	pid_t child = fork();
	if (!child) {
		counter = 40;
		if (write(fds[1], "x", 1) != 1)
			abort();
		for (;;)
			if (works)
				counter = counter == 40 ? 40 : 41;
			else
				pause();
	}
	char byte;
	if (read(fds[0], &byte, 1) != 1)
		abort();
	printf("attached %ld\n", ptrace(PTRACE_ATTACH, child, 0, 0));
	int status = wait_for(child);
	printf("%d %d\n", WIFSTOPPED(status), WSTOPSIG(status));
	if (!works)
		tell(child, "stop");
	printf("counter %ld\n", ptrace(PTRACE_PEEKDATA, child, &counter, 0));
	ptrace(PTRACE_POKEDATA, child, &counter, 77);
	printf("counter %ld\n", ptrace(PTRACE_PEEKDATA, child, &counter, 0));
	for (int n = 0; n < (works ? 50 : 0); n++) {
		ptrace(PTRACE_SINGLESTEP, child, 0, 0);
		status = wait_for(child);
		if (!WIFSTOPPED(status) || WSTOPSIG(status) != SIGTRAP)
			printf("step: %x\n", status);
	}
	printf("let go %ld\n", ptrace(PTRACE_DETACH, child, 0, 0));
	printf("again %ld\n", ptrace(PTRACE_SEIZE, child, 0, 0));
	kill(child, SIGKILL);
	status = wait_for(child);
	printf("end %d\n", WTERMSIG(status));
}

/* The child has our memory until it executes something. */
static void traced_vfork(const char *what)
{
	pid_t child = vfork();
	if (!child) {
		counter++;
		if (ptrace(PTRACE_TRACEME, 0, 0, 0))
			_exit(1);
		execl(what, what, "traced", (char *)0);
		_exit(9);
	}
	int status = wait_for(child);
	if (WIFSTOPPED(status)) {
		tell(child, "stop");
		ptrace(PTRACE_SETOPTIONS, child, 0, PTRACE_O_TRACESYSGOOD);
	}
	follow(child, status);
}

/* As crash handlers do: a child looks at its parent. */
static void parent(void)
{
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
	counter++;
	pid_t parent = getpid(), child = fork();
	if (!child) {
		counter++;
		printf("attached %ld\n", ptrace(PTRACE_ATTACH, parent, 0, 0));
		int status = wait_for(parent);
		printf("%d %d\n", WIFSTOPPED(status), WSTOPSIG(status));
		tell(parent, "stop");
		printf("counter %ld\n", ptrace(PTRACE_PEEKDATA, parent, &counter, 0));
		printf("let go %ld\n", ptrace(PTRACE_DETACH, parent, 0, 0));
		fflush(stdout);
		_exit(3);
	}
	int status = 0;
	pid_t found = waitpid(child, &status, 0);
	counter++;
	printf("%d %d\n", found == child, WEXITSTATUS(status));
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "";
	self = argv[0];
	setvbuf(stdout, 0, _IOLBF, 4096);
	counter = 1;
	if (!strcmp(how, "traceme") || !strcmp(how, "traceme-exec"))
		trace_me(how[7] == '-');
	else if (!strcmp(how, "seize") || !strcmp(how, "seize-exec"))
		seize(how[5] == '-');
	else if (!strcmp(how, "attach") || !strcmp(how, "attach-works"))
		attach(how[6] == '-');
	else if (!strcmp(how, "vfork") || !strcmp(how, "vfork-fails"))
		traced_vfork(how[5] ? "/nonexistent" : self);
	else if (!strcmp(how, "parent"))
		parent();
	else if (!strcmp(how, "traced")) {
		counter = 2;
		traced();
	} else if (!strcmp(how, "itself")) {
		/* Our parent waits for our end only. */
		pid_t child = fork();
		if (!child) {
			counter++;
			printf("%ld\n", ptrace(PTRACE_TRACEME, 0, 0, 0));
			printf("%ld %d\n", ptrace(PTRACE_TRACEME, 0, 0, 0), errno);
			fflush(stdout);
			_exit(4);
		}
		int status = wait_for(child);
		printf("end %x\n", status);
	}
	return 0;
}
