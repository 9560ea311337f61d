// A page of a block becomes one that may only be read: hot loads there, and a store that faults; then it is written again.
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define PAGE 4096
static sigjmp_buf back;
static volatile int faults;
static char *volatile pages;

static void fault(int sig, siginfo_t *info, void *context)
{
	(void)sig;
	(void)context;
	faults += (char *)info->si_addr == pages + PAGE + 16;
	siglongjmp(back, 1);
}

int main(int argc, char **argv)
{
	const int rounds = argc > 1 ? atoi(argv[1]) : 300000;
	struct sigaction action = {.sa_sigaction = fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
	unsigned long sum = 0;
	sigaction(SIGSEGV, &action, NULL);
	pages = aligned_alloc(PAGE, 3 * PAGE);
	for (int i = 0; i < 3 * PAGE; i++)
		pages[i] = (char)(i * 7);
	for (int turn = 0; turn < 3; turn++) {
		mprotect(pages + PAGE, PAGE, PROT_READ);
		for (int i = 0; i < rounds; i++)
			sum += *(volatile unsigned *)(pages + PAGE + i % 1000 * 4);
		for (int i = 0; i < 20; i++)
			if (!sigsetjmp(back, 0))
				*(volatile char *)(pages + PAGE + 16) = 1;
		mprotect(pages + PAGE, PAGE, PROT_READ | PROT_WRITE);
		for (int i = 0; i < rounds; i++)
			*(volatile unsigned *)(pages + PAGE + i % 1000 * 4) += 1;
	}
	printf("%lx, %d faults\n", sum, faults);
	free(pages);
	return 0;
}
