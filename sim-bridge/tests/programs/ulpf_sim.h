// The machine's new instructions, the thesis's system calls, and its modify_pli.
#define ULIRET		".byte 0x0f, 0x04, 0xc0\n"
#define SET_TLB_RO(p)	asm volatile(".byte 0x0f, 0x04, 0xcf" :: "D"(p) : "memory")
#define SET_TLB_RW(p)	asm volatile(".byte 0x0f, 0x04, 0xd7" :: "D"(p) : "memory")
#define WRITE_CR16(v)	asm volatile(".byte 0x0f, 0x04, 0xdf" :: "D"(v) : "memory")
#define READ_CR17(v)	asm volatile(".byte 0x0f, 0x04, 0xe7" : "=D"(v) :: "memory")
#define WRITE_CR18(v)	asm volatile(".byte 0x0f, 0x04, 0xef" :: "D"(v) : "memory")
#define REGISTER_ULI	0x1000
#define SET_RO		0x1001

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <sys/syscall.h>

static void modify_pli(void *addr, int perms, char *region)
{
	unsigned bit = ((uintptr_t)addr >> 12 & 511) << 1;
	region[bit >> 3] = (region[bit >> 3] & ~(3 << (bit & 7))) | perms << (bit & 7);
}

// Faults counted by the handler, and the last address.
volatile unsigned long faults, last;

// Counts, keeps CR17, and leaves the red zone and every register as they were.
extern char handler[];
asm("handler:\n"
    "push %rdi\n"
    ".byte 0x0f, 0x04, 0xe7\n"	// READ_CR17 rdi
    "mov %rdi, last\n"
    "incq faults\n"
    "pop %rdi\n"
    ULIRET);
