// User-level page faults as the thesis has them: its system calls, its instructions, its PLI.
#include "ulpf_sim.h"

#define CHECK(x) do { if (!(x)) { printf("line %d: %s (%lu faults, last %#lx)\n", __LINE__, #x, faults, last); return 1; } } while (0)

int main(int argc, char **argv)
{
	char *pli = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	volatile char *page = mmap(NULL, 4 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	page = (volatile char *)(((uintptr_t)page + (2 << 20) - 1) & -(2L << 20));
	char *region = pli + 31 * 128;
	CHECK(syscall(REGISTER_ULI, handler) == 0);
	CHECK(syscall(SET_RO, page, region) == 0);
	CHECK(syscall(SET_RO, page, pli) == -1);	// region 0 is the library's
	CHECK(syscall(SET_RO, page, region + 1) == -1);

	page[5] = 1;					// the TLB knows the page as open
	modify_pli((void *)page, 1, region);
	page[5] = 2;
	CHECK(faults == 0);				// and it is not told: the thesis's incoherence
	SET_TLB_RO(page);
	page[5] = 3;
	CHECK(faults == 1 && last == (uintptr_t)page + 5);
	CHECK(page[5] == 3);				// write-once has let it pass
	page[6] = 4;
	CHECK(faults == 2 && page[6] == 4);
	modify_pli((void *)page, 0, region);
	page[5] = 5;
	CHECK(faults == 3);				// still closed, as the TLB knows it
	SET_TLB_RW(page);
	page[5] = 6;
	CHECK(faults == 3 && page[5] == 6);
	SET_TLB_RO(page + 4096 * 100);			// not in the TLB: nothing
	page[4096 * 100] = 1;
	CHECK(faults == 3);

	SET_TLB_RO(page);
	*(volatile uint64_t *)(page + 4092) = 0x0102030405060708;	// over the edge to an open page
	CHECK(faults == 4 && last == (uintptr_t)page + 4092);
	CHECK(*(volatile uint64_t *)(page + 4092) == 0x0102030405060708);
	asm volatile("rep stosb" :: "D"(page + 200), "a"('z'), "c"(5L) : "memory");
	CHECK(faults > 4 && page[200] == 'z' && page[204] == 'z' && page[205] == 0);

	// The red zone is the interrupted code's.
	long kept;
	asm volatile("mov $77, %%rax\n mov %%rax, -8(%%rsp)\n mov %%rax, -128(%%rsp)\n movb $1, (%1)\n"
		     "mov -8(%%rsp), %0\n add -128(%%rsp), %0" : "=&r"(kept) : "r"(page) : "rax", "memory");
	CHECK(kept == 154);
	if (argc > 1 && argv[1][0] == 'k') {	// forbidden by the kernel, too
		mprotect((void *)page, 4096, PROT_READ);
		page[1] = 1;
	}
	modify_pli((void *)page, 1, region);
	if (argc > 1 && argv[1][0] == 'f')	// the frame would lie on a guarded page
		asm volatile("lea 1024(%0), %%rsp\n movb $1, (%0)" :: "r"(page) : "memory");
	printf("thesis: done\n");
	return 0;
}
