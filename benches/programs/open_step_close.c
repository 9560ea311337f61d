/* The design that ours is compared with: SIGSEGV, open the page, single-step the store, close the
 * page again (two signals and two mprotect calls a store). */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "measure.h"

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
	struct moment start;

	page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	page[64] = 1;
	action.sa_sigaction = on_fault;
	sigaction(SIGSEGV, &action, NULL);
	action.sa_sigaction = on_step;
	sigaction(SIGTRAP, &action, NULL);
	mprotect((void *)page, 4096, PROT_READ);
	start = moment();
	for (long i = 0; i < count; i++)
		page[64] = i;
	report(start, count);
	return others != count;
}
