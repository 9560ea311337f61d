// One instruction on a guarded page: `movups` makes two stores, `rmw` a load and a store at one address,
// `store` one. Ends if the write-once rule lets it; --limit ends it otherwise.
#include "ulpf_sim.h"

int main(int argc, char **argv)
{
	char *pli = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	modify_pli(page, 1, pli + 128);
	syscall(REGISTER_ULI, handler);
	syscall(SET_RO, page, pli + 128);
	switch (argv[1][0]) {
	case 'm':
		asm volatile("pcmpeqd %%xmm0, %%xmm0\n movups %%xmm0, (%0)" :: "r"(page + 64) : "xmm0", "memory");
		break;
	case 'r':
		asm volatile("incq (%0)" :: "r"(page + 64) : "memory");
		break;
	case 's':
		asm volatile("movq $1, (%0)" :: "r"(page + 64) : "memory");
		break;
	case 'n':	// none: what all of this costs without the store
		break;
	}
	printf("%lu faults, %d %d\n", faults, page[64], page[72]);
	return 0;
}
