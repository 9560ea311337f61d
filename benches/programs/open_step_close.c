/* The design that ours is compared with: SIGSEGV, open the page, single-step the store, close the
 * page again (two signals and two mprotect calls a store). */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>

enum { TRAP_FLAG = 0x100 };
static volatile long *page;
static volatile long hits, others;

static void on_fault(int number, siginfo_t *info, void *context)
{
	ucontext_t *frame = context;

	(void)number;
	if (info->si_addr == (void *)page)
		hits++;
	else
		others++;
	mprotect((void *)page, 4096, PROT_READ | PROT_WRITE);
	frame->uc_mcontext.gregs[REG_EFL] |= TRAP_FLAG;
}

static void on_step(int number, siginfo_t *info, void *context)
{
	ucontext_t *frame = context;

	(void)number;
	(void)info;
	mprotect((void *)page, 4096, PROT_READ);
	frame->uc_mcontext.gregs[REG_EFL] &= ~TRAP_FLAG;
}

int main(int argc, char **argv)
{
	long count = argc > 1 ? atol(argv[1]) : 20000;
	struct sigaction action = { .sa_flags = SA_SIGINFO };
	struct timespec start, end;

	page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	page[64] = 1;
	action.sa_sigaction = on_fault;
	sigaction(SIGSEGV, &action, NULL);
	action.sa_sigaction = on_step;
	sigaction(SIGTRAP, &action, NULL);
	mprotect((void *)page, 4096, PROT_READ);
	clock_gettime(CLOCK_MONOTONIC, &start);
	for (long i = 0; i < count; i++)
		page[64] = i;
	clock_gettime(CLOCK_MONOTONIC, &end);
	printf("ns %.2f\n", ((end.tv_sec - start.tv_sec) * 1e9 + end.tv_nsec - start.tv_nsec) / count);
	return others != count;
}
