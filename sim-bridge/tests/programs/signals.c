// Handlers of the program's own signals, faults, traps; masks, alternate stacks, children, pipes.
#define _GNU_SOURCE
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#define CHECK(x) do { if (!(x)) { printf("line %d: %s (errno %d)\n", __LINE__, #x, errno); exit(1); } } while (0)

static volatile sig_atomic_t seen, value;
static char *volatile page;
static sigjmp_buf back;
static char alternate[16384];

static void count(int number)
{
	volatile double x = 3;

	seen++;
	value = number + 0 * (int)(x / 7);
}

static void fault(int number, siginfo_t *info, void *context)
{
	ucontext_t *u = context;

	seen++;
	value = info->si_code;
	if (info->si_addr == page + 5 && u->uc_mcontext.gregs[REG_CR2] == (long)page + 5)
		mprotect(page, 4096, PROT_READ | PROT_WRITE);
	else
		siglongjmp(back, number);
}

static void on_stack(int number)
{
	char here;

	value = &here > alternate && &here < alternate + sizeof alternate;
}

int main(void)
{
	struct sigaction action = { .sa_handler = count };
	sigset_t set, old;
	double before = 1.5, after;
	int fds[2], status;
	char byte = 'x';
	pid_t pid;

	CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
	// Vector registers come through a handler.
	asm volatile("movsd %1, %%xmm7\n mov $39, %%eax\n syscall\n mov %%eax, %%edi\n mov $10, %%esi\n mov $62, %%eax\n"
		     "syscall\n movsd %%xmm7, %0" : "=m"(after) : "m"(before) : "rax", "rdi", "rsi", "rcx", "r11", "xmm7", "memory");
	CHECK(seen == 1 && value == SIGUSR1 && after == 1.5);
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigprocmask(SIG_BLOCK, &set, &old);
	raise(SIGUSR1);
	CHECK(seen == 1);
	sigpending(&set);
	CHECK(sigismember(&set, SIGUSR1));
	sigsuspend(&old);
	CHECK(seen == 2);
	sigprocmask(SIG_SETMASK, &old, NULL);
	CHECK(seen == 2);

	action.sa_sigaction = fault;
	action.sa_flags = SA_SIGINFO;
	sigaction(SIGSEGV, &action, NULL);
	sigaction(SIGFPE, &action, NULL);
	page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	page[5] = 7;			// made again behind the handler
	CHECK(seen == 3 && value == SEGV_ACCERR && page[5] == 7);
	if (!sigsetjmp(back, 1))
		*(volatile int *)16 = 1;
	CHECK(seen == 4 && value == SEGV_MAPERR);
	if (!sigsetjmp(back, 1))
		asm volatile("cltd\n idivl %0" :: "r"(0) : "eax", "edx");
	CHECK(seen == 5 && value == FPE_INTDIV);

	sigaltstack(&(stack_t){ .ss_sp = alternate, .ss_size = sizeof alternate }, NULL);
	action.sa_handler = on_stack;
	action.sa_flags = SA_ONSTACK;
	sigaction(SIGUSR2, &action, NULL);
	raise(SIGUSR2);
	CHECK(value == 1);

	CHECK(pipe(fds) == 0);
	pid = fork();
	if (!pid) {
		CHECK(read(fds[0], &byte, 1) == 1 && byte == 'y');
		page[5] = 99;
		kill(getppid(), SIGUSR1);
		_exit(3);
	}
	CHECK(pid > 0 && page[5] == 7);
	byte = 'y';
	CHECK(write(fds[1], &byte, 1) == 1);
	while (waitpid(pid, &status, 0) < 0)
		CHECK(errno == EINTR);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 3 && page[5] == 7);
	while (seen < 6)
		usleep(1000);
	CHECK(waitpid(-1, &status, 0) == -1 && errno == ECHILD);
	pid = fork();
	if (!pid)
		abort();
	CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	pid = fork();
	if (!pid)
		for (;;)
			pause();
	kill(pid, SIGTERM);
	CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
	signal(SIGALRM, count);
	alarm(1);
	while (value != SIGALRM)
		;
	printf("signals: done\n");
	return 0;
}
