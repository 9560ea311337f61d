// SPDX-License-Identifier: GPL-2.0-or-later
// The thesis's user-level page faults (Listings 3.2 to 3.4), for programs on the machine. They are its
// instructions in our encoding, its system calls, set_permissions() and the two handlers of section
// 4.3.
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ULIRET		".byte 0x0f, 0x04, 0xc0\n"
#define READ_CR17_RDI	".byte 0x0f, 0x04, 0xe7\n"
#define SET_TLB_RO(p)	asm volatile(".byte 0x0f, 0x04, 0xcf" :: "D"(p) : "memory")
#define REGISTER_ULI	0x1000
#define SET_RO		0x1001
#define WATCH_LINE	0x1002
#define OPEN_LINE	0x1003
#define PAGE		4096ul

void watchlist_add(uint64_t addr, uint64_t len);
bool watchlist_holds(uint64_t addr);
size_t watchlist_nodes(void);

volatile unsigned long watchpoint_hit, false_positive;

// The empty handler returns; write-once lets the store pass.
extern char empty_handler[], lookup_handler[];
asm(".text\n"
    "empty_handler: " ULIRET
    "lookup_handler:\n"
    "	push %rax; push %rcx; push %rdx; push %rsi; push %rdi; push %r8; push %r9; push %r10; push %r11\n"
    "	sub $8, %rsp\n"
    "	" READ_CR17_RDI
    "	call watchlist_holds\n"
    "	test %al, %al\n"
    "	jz 1f\n"
    "	incq watchpoint_hit(%rip)\n"
    "	jmp 2f\n"
    "1:	incq false_positive(%rip)\n"
    "2:	add $8, %rsp\n"
    "	pop %r11; pop %r10; pop %r9; pop %r8; pop %rdi; pop %rsi; pop %rdx; pop %rcx; pop %rax\n"
    "	" ULIRET);

// Region lookup table: which region of a PLI governs a prefix.
static struct { uint64_t prefix; char *region; } regions[1024];
static unsigned region_count;

static char *region_of(uint64_t addr)
{
	static char *pli;

	for (unsigned i = 0; i < region_count; i++)
		if (regions[i].prefix == addr >> 21)
			return regions[i].region;
	// Region 0 of each PLI is the library's.
	if (region_count % 31 == 0)
		pli = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (region_count == 1024)
		abort();
	regions[region_count].prefix = addr >> 21;
	regions[region_count].region = pli + 128 * (1 + region_count % 31);
	if (syscall(SET_RO, addr, regions[region_count].region))
		abort();
	return regions[region_count++].region;
}

static void register_user_handler(const char *which)
{
	if (which[0] != 'n' && syscall(REGISTER_ULI, which[0] == 'l' ? lookup_handler : empty_handler))
		abort();
}

// User read-only from addr on.
static void set_permissions(uint64_t addr, uint64_t len)
{
	for (uint64_t page = addr & -PAGE; page < addr + len; page += PAGE) {
		char *region = region_of(page);
		unsigned bit = (page >> 12 & 511) << 1;

		region[bit >> 3] |= 1 << (bit & 7);
		SET_TLB_RO(page);
	}
	watchlist_add(addr, len);
}

static inline uint64_t cycles(void)
{
	uint32_t low, high;

	asm volatile("rdtsc" : "=a"(low), "=d"(high));
	return (uint64_t)high << 32 | low;
}
