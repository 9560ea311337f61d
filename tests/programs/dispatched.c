/* A program that dispatches its system calls itself (PR_SET_SYSCALL_USER_DISPATCH), as Wine does. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

enum { ALLOW, BLOCK, NONSENSE };
volatile char selector; /* watched */
static volatile long asked;
static volatile int code, nr, error, behind, arch;
extern const char call_end[], exempt_start[], exempt_end[];

/* Two instructions that make calls: one is exempt. */
long call(long nr, long a);
long exempt(long nr, long a);
__asm__(".text\n"
	"call: mov %rdi, %rax; mov %rsi, %rdi; syscall\ncall_end: ret\n"
	"exempt_start: exempt: mov %rdi, %rax; mov %rsi, %rdi; syscall; ret\nexempt_end:\n");

static void on_sys(int number, siginfo_t *info, void *context)
{
	greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;

	selector = ALLOW;
	asked += number == SIGSYS;
	code = info->si_code;
	nr = info->si_syscall;
	error = info->si_errno;
	arch = info->si_arch;
	behind = info->si_call_addr == call_end && regs[REG_RIP] == (greg_t)call_end;
	/* It is answered here. */
	regs[REG_RAX] = 1000 + regs[REG_RAX];
}

static int set(unsigned long mode, const char *from, unsigned long len, volatile char *at)
{
	return prctl(PR_SET_SYSCALL_USER_DISPATCH, mode, from, len, at) ? errno : 0;
}

static char asked_for;

static void *in_a_thread(void *unused)
{
	selector = BLOCK;
	unused = call(SYS_getppid, 0) == (long)unused ? &asked_for : NULL;
	selector = ALLOW;
	return unused;
}

static void ends(const char *how, void (*f)(void))
{
	int status;
	pid_t child = fork();

	if (child == 0) {
		set(PR_SYS_DISPATCH_ON, exempt_start, exempt_end - exempt_start, &selector);
		f();
		selector = ALLOW;
		_exit(1);
	}
	waitpid(child, &status, 0);
	printf("%s: %s %d\n", how, WIFSIGNALED(status) ? "signal" : "status", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

static void nonsense(void)
{
	selector = NONSENSE;
	call(SYS_getpid, 0);
}

static void unreadable(void)
{
	char *page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	set(PR_SYS_DISPATCH_ON, exempt_start, exempt_end - exempt_start, page);
	call(SYS_getpid, 0);
}

static void blocked(void)
{
	sigset_t mask;

	sigemptyset(&mask);
	sigaddset(&mask, SIGSYS);
	sigprocmask(SIG_BLOCK, &mask, NULL);
	selector = BLOCK;
	call(SYS_getpid, 0);
}

static void no_selector(void)
{
	set(PR_SYS_DISPATCH_ON, exempt_start, exempt_end - exempt_start, NULL);
	signal(SIGSYS, SIG_DFL);
}

int main(void)
{
	struct sigaction action = { .sa_sigaction = on_sys, .sa_flags = SA_SIGINFO };
	long pid = getpid(), right = 0, status;
	pthread_t thread;
	void *same;

	setvbuf(stdout, NULL, _IOLBF, 0);
	sigaction(SIGSYS, &action, NULL);
	printf("bad: %d %d %d %d %d\n", set(9, NULL, 0, NULL), set(PR_SYS_DISPATCH_OFF, NULL, 1, NULL),
	       set(PR_SYS_DISPATCH_ON, exempt_start, 0, &selector), set(PR_SYS_DISPATCH_ON, NULL, 0, (char *)(1UL << 63)),
	       set(PR_SYS_DISPATCH_ON, exempt_start, -1UL, &selector));
	for (int i = 0; i < 300; i++) /* a busy instruction */
		right += call(SYS_getpid, 0) == pid;
	printf("on: %d\n", set(PR_SYS_DISPATCH_ON, exempt_start, exempt_end - exempt_start, &selector));
	for (int i = 0; i < 300; i++) {
		selector = BLOCK;
		right += call(SYS_getpid, 0) == 1000 + SYS_getpid;
		right += selector == ALLOW && call(SYS_getpid, 0) == pid;
	}
	printf("right %ld, asked %ld: code %d, number %d, error %d, arch %x, behind %d\n", right, asked, code, nr, error, arch, behind);
	for (int i = right = 0; i < 300; i++) {
		selector = BLOCK;
		right += exempt(SYS_getpid, 0) == pid;
	}
	__asm__ volatile("int $0x80" : "=a"(status) : "a"(20) : "memory");
	printf("right %ld, int 0x80: %ld, asked %ld: number %d, arch %x, behind %d\n", right, status, asked, nr, arch, behind);
	selector = BLOCK;
	status = call(SYS_execve, 0);
	printf("execve: %ld, asked %ld: number %d\n", status, asked, nr);

	pthread_create(&thread, NULL, in_a_thread, (void *)(long)getppid());
	pthread_join(thread, &same);
	printf("a thread: %d, asked %ld\n", same != NULL, asked);
	pid = exempt(SYS_fork, 0);
	if (pid == 0) {
		selector = BLOCK;
		_exit(call(SYS_getppid, 0) == getppid() && asked == 302 ? 7 : 8);
	}
	waitpid(pid, (int *)&status, 0);
	printf("a child: %d\n", WEXITSTATUS((int)status));
	ends("nonsense", nonsense);
	ends("unreadable", unreadable);
	ends("blocked", blocked);
	ends("no selector, no handler", no_selector);

	printf("off: %d\n", set(PR_SYS_DISPATCH_OFF, NULL, 0, NULL));
	selector = BLOCK;
	right = call(SYS_getppid, 0) == getppid();
	printf("right %ld, asked %ld\n", right, asked);
	return 0;
}
