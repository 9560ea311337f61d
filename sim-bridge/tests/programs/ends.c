// Ends in the way that its argument says.
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	volatile int zero = 0;
	volatile char *page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	switch (argv[1][0]) {
	case 'd': asm volatile("cltd\n idivl %0" :: "m"(zero) : "eax", "edx"); break;
	case 'a': abort();
	case 'u': asm volatile("ud2"); break;
	case 'b': asm volatile("int3"); break;
	case 'n': *(volatile int *)8 = 1; break;
	case 'r': page[1] = 1; break;
	case 'j': asm volatile("jmp *%0" :: "r"(-1L)); break;
	case 'x': ((void (*)(void))page)(); break;
	case 'k': *(volatile char *)0xffffffff80000000 = 1; break;
	case 'h': asm volatile("hlt"); break;
	case 'i': asm volatile(".byte 0x48, 0xcf"); break;
	case 'S': return syscall(41 /* socket */, 1, 1, 0) < 0;
	case 's': asm volatile("mov $8, %rsp\n push %rax"); break;
	}
	return 0;
}
