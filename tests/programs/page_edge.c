/* A store that begins on a watched page and ends on one that is not there: the program's own SIGSEGV
 * handler must see the address that is missing. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

char *page;
static sigjmp_buf back;
static char *volatile at;

static void on_fault(int number, siginfo_t *info, void *context)
{
	(void)number;
	(void)context;
	at = info->si_addr;
	siglongjmp(back, 1);
}

void ready(void)
{
}

int main(void)
{
	struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};

	sigaction(SIGSEGV, &action, NULL);
	page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memset(page, 1, 8192);
	munmap(page + 4096, 4096);
	ready();
	for (volatile int i = 0; i < 3; i++) {
		if (!sigsetjmp(back, 1))
			*(volatile long *)(page + 4092) = 5;
		else
			printf("page_edge: fault at page + %td, its last byte is %d\n", at - page, page[4095]);
	}
	return 0;
}
