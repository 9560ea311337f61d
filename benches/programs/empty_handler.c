/* The kernel's own cost of a store that faults: a SIGSEGV handler on an alternate stack that does
 * nothing but skip the instruction. No design with one signal a store can be cheaper. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "measure.h"

enum { STORE_LENGTH = 3 }; /* movb $1, (%rax) */

static void on_fault(int number, siginfo_t *info, void *context)
{
	(void)number;
	(void)info;
	((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] += STORE_LENGTH;
}

int main(int argc, char **argv)
{
	static char stack[1 << 16];
	long count = argc > 1 ? atol(argv[1]) : 20000;
	stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
	struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
	struct moment start;
	char *page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	sigfillset(&action.sa_mask);
	if (page == MAP_FAILED || sigaltstack(&alternate, NULL) || sigaction(SIGSEGV, &action, NULL)) {
		perror("empty_handler");
		return 1;
	}
	start = moment();
	for (long i = 0; i < count; i++)
		__asm__ volatile("movb $1, (%0)" : : "a"(page) : "memory");
	report(start, count);
	return 0;
}
