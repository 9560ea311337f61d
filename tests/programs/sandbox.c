/* A program that sandboxes itself with seccomp(2), in the way that its argument names, and says what it sees. It
   stores to `counter` before and after. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

volatile long counter;
static char buffer[64];

#define NR BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))
#define ARG(n) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args) + 8 * (n))
#define ARG_HIGH(n) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args) + 8 * (n) + 4)
#define IP BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer))
#define IP_HIGH BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer) + 4)
/* If the word is not `value`, skip so many. */
#define IS(value, skip) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(value), 0, skip)
#define RETURN(value) BPF_STMT(BPF_RET | BPF_K, value)
#define ALLOW RETURN(SECCOMP_RET_ALLOW)
#define CALL(nr, value) IS(nr, 1), RETURN(value)

static long install(unsigned flags, struct sock_filter *filter, size_t len)
{
	struct sock_fprog program = {.len = len, .filter = filter};
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
}
#define INSTALL(flags, ...) \
	({ struct sock_filter all[] = {__VA_ARGS__}; install(flags, all, sizeof all / sizeof *all); })

__attribute__((noinline)) static long call(long nr, long a, long b, long c)
{
	long result;
	__asm__ volatile(".globl the_call\nsyscall\nthe_call:" : "=a"(result) : "a"(nr), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
	return result;
}
extern char the_call[];

static void say(const char *text)
{
	call(SYS_write, 1, (long)text, strlen(text));
}

static void errnos(void)
{
	printf("%ld\n", INSTALL(0, NR, CALL(SYS_getppid, SECCOMP_RET_ERRNO | 77), CALL(SYS_getuid, SECCOMP_RET_ERRNO | 0xffff),
				CALL(SYS_getgid, SECCOMP_RET_ERRNO),
				CALL(SYS_geteuid, SECCOMP_RET_ERRNO | 512), CALL(SYS_getegid, SECCOMP_RET_ERRNO | 513), ALLOW));
	counter++;
	printf("%ld %ld %ld %d\n", call(SYS_getppid, 0, 0, 0), call(SYS_getuid, 0, 0, 0), call(SYS_getgid, 0, 0, 0), getpid() > 1);
	/* The kernel's own, by which it makes calls again. */
	printf("%ld %ld\n", call(SYS_geteuid, 0, 0, 0), call(SYS_getegid, 0, 0, 0));
	/* A second one: the stricter action counts, of equal ones the newest's number. */
	INSTALL(0, NR, CALL(SYS_getppid, SECCOMP_RET_ERRNO | 5), CALL(SYS_getuid, SECCOMP_RET_ALLOW), ALLOW);
	printf("%ld %ld\n", call(SYS_getppid, 0, 0, 0), call(SYS_getuid, 0, 0, 0));
	printf("mode %d, %ld %ld %ld\n", prctl(PR_GET_SECCOMP), syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 0, 0),
	       syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0x4000, buffer), syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, 8));
	struct sock_filter bad[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 3), ALLOW};
	struct sock_fprog program = {.len = 2, .filter = bad}, empty = {0}, nowhere = {.len = 2, .filter = (void *)16};
	printf("%ld %d\n", syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program), errno);
	printf("%ld %d\n", syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &empty), errno);
	printf("%ld %d\n", syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &nowhere), errno);
	/* The kernel's own count, but for filters of what surrounds us. */
	char line[256];
	FILE *status = fopen("/proc/self/status", "r");
	while (fgets(line, sizeof line, status))
		if (!strncmp(line, "Seccomp", 7))
			fputs(line, stdout);
}

static void arguments(void)
{
	/* Reads into the watched buffer, and from this file descriptor only. */
	uintptr_t at = (uintptr_t)buffer;
	int fds[2];
	if (pipe(fds))
		abort();
	INSTALL(0, NR, IS(SYS_read, 8), ARG(0), IS(fds[0], 5), ARG(1), IS(at, 3), ARG_HIGH(1), IS(at >> 32, 1), ALLOW,
		RETURN(SECCOMP_RET_ERRNO | EXDEV), ALLOW);
	counter++;
	if (write(fds[1], "abcdef", 6) != 6)
		abort();
	printf("%ld ", (long)read(fds[0], buffer, 3));
	printf("%ld ", (long)read(fds[0], buffer + 8, 3));
	printf("%ld %s\n", (long)read(fds[0], buffer, 3), buffer);
}

static void places(void)
{
	uintptr_t at = (uintptr_t)the_call;
	INSTALL(0, NR, IS(SYS_getppid, 6), IP, IS(at, 3), IP_HIGH, IS(at >> 32, 1), ALLOW, RETURN(SECCOMP_RET_ERRNO | EXDEV), ALLOW);
	counter++;
	for (int i = 0; i < 100; i++) /* a busy site is patched, or is it? */
		if (call(SYS_getppid, 0, 0, 0) < 2)
			abort();
	long elsewhere = syscall(SYS_getppid);
	printf("%d %ld %d\n", call(SYS_getppid, 0, 0, 0) > 1, elsewhere, errno);
}

static void on_trap(int sig, siginfo_t *info, void *context)
{
	ucontext_t *uc = context;
	printf("%d: code %d errno %d %d %d %#x %d ip %d\n", sig, info->si_code, info->si_errno, info->si_call_addr == the_call,
	       info->si_syscall, info->si_arch, (int)uc->uc_mcontext.gregs[REG_RAX], uc->uc_mcontext.gregs[REG_RIP] == (long)the_call);
	counter++;
	uc->uc_mcontext.gregs[REG_RAX] = 1234;
}

static void traps(void)
{
	struct sigaction action = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO};
	sigaction(SIGSYS, &action, 0);
	INSTALL(0, NR, CALL(SYS_getppid, SECCOMP_RET_TRAP | 9), CALL(SYS_reboot, SECCOMP_RET_TRAP), ALLOW);
	counter++;
	printf("%ld\n", call(SYS_getppid, 1, 2, 3));
	printf("%ld\n", call(SYS_reboot, 1, 2, 3));
	fflush(stdout);
	if (!fork()) { /* blocked: it ends the process */
		sigset_t set;
		sigfillset(&set);
		sigprocmask(SIG_BLOCK, &set, 0);
		call(SYS_getppid, 0, 0, 0);
		_exit(0);
	}
	int status;
	wait(&status);
	printf("%d %d\n", WIFSIGNALED(status), WTERMSIG(status));
	fflush(stdout);
	signal(SIGSYS, SIG_IGN);
	call(SYS_getppid, 0, 0, 0);
}

/* Four calls are allowed, and what only we need is not. */
static void narrow(void)
{
	INSTALL(0, NR, CALL(SYS_write, SECCOMP_RET_ALLOW), CALL(SYS_exit_group, SECCOMP_RET_ALLOW), CALL(SYS_read, SECCOMP_RET_ALLOW),
		RETURN(SECCOMP_RET_KILL_PROCESS));
	for (int i = 0; i < 1000; i++)
		counter++;
	say("narrow\n");
	if (counter == 1001)
		say("1001\n");
	buffer[0] = 'x';
	call(SYS_write, 1, (long)buffer, 1);
	call(SYS_exit_group, 7, 0, 0);
}

static void killed(void)
{
	INSTALL(0, NR, CALL(SYS_getppid, SECCOMP_RET_KILL_PROCESS), ALLOW);
	counter++;
	say("before\n");
	call(SYS_getppid, 0, 0, 0);
	say("after\n");
}

static void strictly(void)
{
	prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
	for (int i = 0; i < 1000; i++)
		counter++;
	say("strict\n");
	call(SYS_getpid, 0, 0, 0);
	say("after\n");
}

static void strictly_to_the_end(void)
{
	prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
	counter++;
	say("strict\n");
	call(SYS_exit, 3, 0, 0);
}

static pthread_barrier_t both;

static void *other(void *unused)
{
	(void)unused;
	pthread_barrier_wait(&both);
	pthread_barrier_wait(&both);
	counter++;
	long was = call(SYS_getppid, 0, 0, 0);
	pthread_barrier_wait(&both);
	return (void *)was;
}

static void *dies(void *unused)
{
	call(SYS_getppid, 0, 0, 0);
	say("after\n");
	return unused;
}

static void threads(void)
{
	pthread_t thread;
	void *was;
	pthread_barrier_init(&both, 0, 2);
	pthread_create(&thread, 0, other, 0);
	pthread_barrier_wait(&both);
	long result = INSTALL(SECCOMP_FILTER_FLAG_TSYNC, NR, CALL(SYS_getppid, SECCOMP_RET_ERRNO | 42), ALLOW);
	counter++;
	pthread_barrier_wait(&both);
	pthread_barrier_wait(&both);
	pthread_join(thread, &was);
	printf("%ld: %ld %ld\n", result, (long)was, call(SYS_getppid, 0, 0, 0));
	/* Not all can have it: the other one has a filter of its own. */
	fflush(stdout);
	INSTALL(0, NR, CALL(SYS_getppid, SECCOMP_RET_KILL_THREAD), ALLOW);
	pthread_create(&thread, 0, dies, 0);
	/* The thread ends without its own exit path; only the kernel wakes the thread that joins it. */
	pthread_join(thread, 0);
	say("one thread less\n");
}

/* A supervisor answers. */
static void *supervise(void *listener)
{
	struct seccomp_notif request;
	struct seccomp_notif_resp response;
	for (int n = 0; n < 3; n++) {
		memset(&request, 0, sizeof request);
		if (ioctl((int)(long)listener, SECCOMP_IOCTL_NOTIF_RECV, &request))
			break;
		memset(&response, 0, sizeof response);
		response.id = request.id;
		if (request.data.nr == SYS_getppid)
			response.val = 4242;
		else if (request.data.args[2] == 5)
			response.error = -EMLINK;
		else
			response.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
		ioctl((int)(long)listener, SECCOMP_IOCTL_NOTIF_SEND, &response);
	}
	return 0;
}

static void supervised(void)
{
	pthread_t thread;
	int fds[2];
	if (pipe(fds) || write(fds[1], "abcdefgh", 8) != 8)
		abort();
	/* The supervisor's thread has its own calls let pass: only these are asked about. */
	long listener = INSTALL(SECCOMP_FILTER_FLAG_NEW_LISTENER, NR, CALL(SYS_getppid, SECCOMP_RET_USER_NOTIF),
				CALL(SYS_readv, SECCOMP_RET_ALLOW), IS(SYS_read, 3), ARG(0), IS(fds[0], 1),
				RETURN(SECCOMP_RET_USER_NOTIF), ALLOW);
	pthread_create(&thread, 0, supervise, (void *)listener);
	counter++;
	printf("%ld ", call(SYS_getppid, 0, 0, 0));
	printf("%ld ", call(SYS_read, fds[0], (long)buffer, 5));
	printf("%ld %s\n", call(SYS_read, fds[0], (long)buffer, 4), buffer);
	pthread_join(thread, 0);
}

/* There is no supervisor. Its calls fail, also one that the filter matches by address, and one that only ulpf can make. */
static void unsupervised(void)
{
	INSTALL(0, NR, CALL(SYS_mremap, SECCOMP_RET_USER_NOTIF), CALL(SYS_munmap, SECCOMP_RET_TRACE | 7), IS(SYS_getppid, 3), IP,
		IS((uintptr_t)the_call, 1), RETURN(SECCOMP_RET_TRACE), ALLOW);
	counter++;
	printf("%ld %ld %ld %d\n", call(SYS_getppid, 0, 0, 0), call(SYS_mremap, 0, 0, 0), call(SYS_munmap, 0, 0, 0), getppid() > 1);
}

static void forks(void)
{
	INSTALL(0, NR, CALL(SYS_munmap, SECCOMP_RET_KILL_PROCESS), CALL(SYS_rt_sigaction, SECCOMP_RET_KILL_PROCESS),
		CALL(SYS_mprotect, SECCOMP_RET_KILL_PROCESS), CALL(SYS_getppid, SECCOMP_RET_ERRNO | 3), ALLOW);
	counter++;
	for (int n = 0; n < 3; n++) {
		int status;
		pid_t child = fork();
		if (!child) {
			counter += 10;
			long was = call(SYS_getppid, 0, 0, 0);
			if (n == 1)
				call(SYS_mprotect, 0, 0, 0);
			_exit(was == -3 && counter == 12 + n ? 5 : 6);
		}
		waitpid(child, &status, 0);
		printf("%d %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1, WIFSIGNALED(status) ? WTERMSIG(status) : 0);
		fflush(stdout);
		counter++;
	}
}

/* No program has code there. */
static struct sock_filter nowhere[] = {IP_HIGH, BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x7e80, 0, 2), BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x7eef, 1, 0),
				       RETURN(SECCOMP_RET_KILL_PROCESS), NR, CALL(SYS_getuid, SECCOMP_RET_ERRNO | 7), ALLOW};
static struct sock_fprog changing = {.len = 0, .filter = nowhere};
static volatile int installed;

static void *change(void *unused)
{
	while (!installed) {
		*(volatile unsigned short *)&changing.len = sizeof nowhere / sizeof *nowhere;
		*(volatile unsigned short *)&changing.len = 0;
	}
	return unused;
}

/* A filter that another thread changes while it is being installed: what is installed is one of the two. */
static void raced(void)
{
	pthread_t thread;
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	for (int n = 0; n < 40; n++) {
		installed = 0;
		pthread_create(&thread, 0, change, 0);
		while (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &changing))
			if (errno != EINVAL)
				abort();
		installed = 1;
		counter++;
		pthread_join(thread, 0);
	}
	printf("%ld\n", call(SYS_getuid, 0, 0, 0));
}

/* Errors in a filter, in the order of the kernel's checks. */
static void refused(void)
{
	struct sock_filter wrong = RETURN(0);
	struct sock_fprog programs[] = {{0, &wrong}, {4097, &wrong}, {65535, 0}, {1, 0}, {1, (void *)-4096L}, {1, &wrong}};
	wrong.code = 0xffff;
	for (int privileged = 0; privileged < 2; privileged++) {
		if (privileged)
			prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
		for (unsigned n = 0; n <= sizeof programs / sizeof *programs; n++) {
			void *at = n < sizeof programs / sizeof *programs ? (void *)&programs[n] : (void *)8;
			for (int flags = 0; flags <= 0x100; flags += 0x100)
				printf("%ld ", call(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, (long)at));
			printf("%ld\n", call(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, (long)at));
		}
	}
}

/* Few calls are allowed, and then it has children. */
static void narrow_forks(void)
{
	INSTALL(0, NR, CALL(SYS_write, SECCOMP_RET_ALLOW), CALL(SYS_exit_group, SECCOMP_RET_ALLOW), CALL(SYS_fork, SECCOMP_RET_ALLOW),
		CALL(SYS_wait4, SECCOMP_RET_ALLOW), RETURN(SECCOMP_RET_KILL_PROCESS));
	for (int generation = 0; generation < 3; generation++) {
		int status = 0;
		long child = call(SYS_fork, 0, 0, 0);
		counter++;
		if (child > 0) {
			call(SYS_wait4, child, (long)&status, 0);
			say(status == 0 ? "ended well\n" : "killed\n");
			break;
		}
		say("a child\n");
	}
	if (counter == 4)
		call(SYS_getpid, 0, 0, 0); /* the last of them goes too far */
	call(SYS_exit_group, 0, 0, 0);
}

/* No memory may be written and executed, as systemd's MemoryDenyWriteExecute= has it. */
static void lineage(const char *self)
{
	INSTALL(0, NR, IS(SYS_mmap, 4), ARG(2), BPF_STMT(BPF_ALU | BPF_AND | BPF_K, PROT_WRITE | PROT_EXEC), IS(PROT_WRITE | PROT_EXEC, 1),
		RETURN(SECCOMP_RET_KILL_PROCESS), NR, IS(SYS_mprotect, 3), ARG(2), BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, PROT_EXEC, 0, 1),
		RETURN(SECCOMP_RET_KILL_PROCESS), NR, CALL(SYS_socketpair, SECCOMP_RET_KILL_PROCESS),
		CALL(SYS_memfd_create, SECCOMP_RET_KILL_PROCESS), CALL(SYS_getppid, SECCOMP_RET_ERRNO | 3), ALLOW);
	counter++;
	pid_t child = fork();
	if (!child) {
		counter += 10;
		execl(self, self, "lineage-2", (char *)0);
	}
	int status;
	waitpid(child, &status, 0);
	printf("%d\n", status);
}

static void second_of_lineage(const char *self)
{
	INSTALL(0, NR, CALL(SYS_getuid, SECCOMP_RET_ERRNO | 7), ALLOW);
	counter++;
	printf("second: %ld %ld\n", call(SYS_getppid, 0, 0, 0), call(SYS_getuid, 0, 0, 0));
	fflush(stdout);
	pid_t child;
	char *arguments[] = {(char *)self, "lineage-3", 0};
	int status = posix_spawn(&child, self, 0, 0, arguments, environ);
	waitpid(child, &status, 0);
	printf("%d\n", status);
}

static void third_of_lineage(void)
{
	counter++;
	printf("third: %ld %ld\n", call(SYS_getppid, 0, 0, 0), call(SYS_getuid, 0, 0, 0));
	fflush(stdout);
	INSTALL(0, NR, CALL(SYS_getgid, SECCOMP_RET_ERRNO | 8), ALLOW);
	pid_t child = fork();
	counter++;
	if (!child) {
		printf("fourth: %ld %ld %ld\n", call(SYS_getppid, 0, 0, 0), call(SYS_getuid, 0, 0, 0), call(SYS_getgid, 0, 0, 0));
		fflush(stdout);
		call(SYS_mprotect, 0, 0, PROT_EXEC);
	}
	int status;
	waitpid(child, &status, 0);
	printf("%d\n", status);
}

/* The executed program may not map memory in the way that ulpf needs. */
static void unmappable(const char *self)
{
	INSTALL(0, NR, IS(SYS_mmap, 3), ARG(3), BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, 0x100000, 0, 1), RETURN(SECCOMP_RET_KILL_PROCESS), NR,
		CALL(SYS_getppid, SECCOMP_RET_ERRNO | 3), ALLOW);
	counter++;
	execl(self, self, "executed", (char *)0);
}

/* Children whose numbers are their own (pid namespaces), as a browser's are. */
static void places_of_its_own(void)
{
	long child = call(SYS_clone, CLONE_NEWPID | SIGCHLD, 0, 0);
	int status;
	counter++;
	if (!child) {
		counter += 10;
		pid_t further = fork();
		if (!further) {
			counter += 100;
			printf("%d %d\n", getpid() > 1, getppid());
			fflush(stdout);
			_exit(5);
		}
		waitpid(further, &status, 0);
		printf("%d %d %d %d\n", getpid(), getppid(), further > 1, WEXITSTATUS(status));
		fflush(stdout);
		_exit(6);
	}
	waitpid(child, &status, 0);
	printf("%d %d\n", child > 1, WEXITSTATUS(status));
}

static void executes(const char *self)
{
	INSTALL(0, NR, CALL(SYS_getppid, SECCOMP_RET_ERRNO | 3), ALLOW);
	counter++;
	execl(self, self, "executed", (char *)0);
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "";
	setvbuf(stdout, 0, _IOLBF, 4096);
	counter = 1;
	if (!strcmp(how, "errnos"))
		errnos();
	else if (!strcmp(how, "arguments"))
		arguments();
	else if (!strcmp(how, "places"))
		places();
	else if (!strcmp(how, "traps"))
		traps();
	else if (!strcmp(how, "narrow"))
		narrow();
	else if (!strcmp(how, "killed"))
		killed();
	else if (!strcmp(how, "strict"))
		strictly();
	else if (!strcmp(how, "strict-end"))
		strictly_to_the_end();
	else if (!strcmp(how, "threads"))
		threads();
	else if (!strcmp(how, "supervised"))
		supervised();
	else if (!strcmp(how, "unsupervised"))
		unsupervised();
	else if (!strcmp(how, "forks"))
		forks();
	else if (!strcmp(how, "raced"))
		raced();
	else if (!strcmp(how, "refused"))
		refused();
	else if (!strcmp(how, "executes"))
		executes(argv[0]);
	else if (!strcmp(how, "narrow-forks"))
		narrow_forks();
	else if (!strcmp(how, "lineage"))
		lineage(argv[0]);
	else if (!strcmp(how, "lineage-2"))
		second_of_lineage(argv[0]);
	else if (!strcmp(how, "lineage-3"))
		third_of_lineage();
	else if (!strcmp(how, "unmappable"))
		unmappable(argv[0]);
	else if (!strcmp(how, "executed"))
		printf("%ld\n", call(SYS_getppid, 0, 0, 0));
	else if (!strcmp(how, "places-of-its-own"))
		places_of_its_own();
	else if (!strcmp(how, "waits-forked")) {
		INSTALL(0, NR, CALL(SYS_munmap, SECCOMP_RET_KILL_PROCESS), CALL(SYS_mmap, SECCOMP_RET_KILL_PROCESS), ALLOW);
		signal(SIGINT, SIG_IGN); /* one that comes early is for the first process */
		pid_t child = fork();
		if (child)
			return 0;
		printf("%d\nready\n", getpid());
		for (;;) {
			counter++;
			usleep(1000);
		}
	} else if (!strcmp(how, "waits") || !strcmp(how, "late")) {
		if (how[0] == 'l') {
			puts("begun");
			getchar();
		}
		INSTALL(0, NR, CALL(SYS_getppid, SECCOMP_RET_ERRNO | 3), CALL(SYS_munmap, SECCOMP_RET_KILL_PROCESS), ALLOW);
		say("ready\n");
		for (;;) {
			counter++;
			usleep(1000);
		}
	}
	return 0;
}
