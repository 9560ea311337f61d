// A store between two readings of the time-stamp counter: to an open page, and to a guarded one.
#include "ulpf_sim.h"

static inline unsigned store(char *at)
{
	unsigned from, to;
	asm volatile("rdtsc\n mov %%eax, %0\n movb $1, (%2)\n rdtsc\n mov %%eax, %1"
		     : "=&r"(from), "=&r"(to) : "r"(at) : "rax", "rdx", "memory");
	return to - from;
}

int main(void)
{
	char *pli = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	page[0] = 1;
	unsigned open = store(page);
	modify_pli(page, 1, pli + 128);
	syscall(REGISTER_ULI, handler);
	syscall(SET_RO, page, pli + 128);
	SET_TLB_RO(page);
	unsigned guarded = store(page);
	printf("open %u, guarded %u\n", open, guarded);
	return 0;
}
