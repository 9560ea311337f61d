// SPDX-License-Identifier: MIT OR Apache-2.0
// A program for /dev/ulpf that any machine of it runs: handlers that make the access through the alias, and
// handlers that just return.
//
//   upcalls           everything once; ends with 0, or says what is wrong
//   upcalls once      the two instructions that some write-once rules repeat for ever: says which end
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>
#include "ulpf.h"

#define CHECK(x) do { if (!(x)) { printf("line %d: %s\n", __LINE__, #x); return 1; } } while (0)
#define PAGE 4096ul

static volatile long upcalls, skip, most;
static volatile char *guarded, *alias;
static volatile struct ulpf_frame seen;
// Where to go on when an instruction does not end.
extern char give_up[];

__attribute__((used, target("general-regs-only"))) static void handle(struct ulpf_frame *f)
{
	upcalls++;
	seen = *f;
	if (skip) {
		alias[f->addr - (uintptr_t)guarded] = 9;
		f->ip += skip;
	}
	if (most && upcalls > most)
		f->ip = (uintptr_t)give_up;
}

// The way back without iretq (uapi/ulpf.h): ip on the program's stack, below its red zone.
extern char entry[];
asm("entry:\n"
    "	push %rax; push %rcx; push %rdx; push %rsi; push %rdi\n"
    "	push %r8; push %r9; push %r10; push %r11; push %rbp\n"
    "	lea 80(%rsp), %rdi\n"
    "	call handle\n"
    "	mov 128(%rsp), %rax; lea -136(%rax), %rax\n"
    "	mov 104(%rsp), %rcx; mov %rcx, (%rax); mov %rax, 128(%rsp)\n"
    "	pop %rbp; pop %r11; pop %r10; pop %r9; pop %r8\n"
    "	pop %rdi; pop %rsi; pop %rdx; pop %rcx; pop %rax\n"
    "	lea 40(%rsp), %rsp; popfq; pop %rsp; ret $128\n"
    // bool modify(char *), bool move(char *): one instruction; false: given up.
    "modify:	incb (%rdi)\n"
    "	mov $1, %eax; ret\n"
    "move:	movups %xmm0, (%rdi)\n"
    "	mov $1, %eax; ret\n"
    "give_up:	xor %eax, %eax; ret\n");
int modify(volatile char *), move(volatile char *);

static int fd;

static int set(volatile char *at, size_t length, int permission)
{
	struct ulpf_op op = { ULPF_OP_SET, 0, (uintptr_t)at, length, permission };

	return ioctl(fd, ULPF_APPLY, &op);
}

static int handler(int flags)
{
	struct ulpf_handler h = { .size = sizeof h, .flags = flags, .entry = (uintptr_t)entry, .cookie = 42 };

	return ioctl(fd, ULPF_HANDLER, &h);
}

static int once(void)
{
	most = 1000;
	CHECK(handler(ULPF_HANDLER_ONCE) == 0 && set(guarded, 2 * PAGE, ULPF_RO) == 0);
	int ends = modify(guarded + 5);
	printf("modify: %s, %ld faults\n", ends ? "ends" : "does not end", upcalls);
	upcalls = 0;
	ends = move(guarded + PAGE);
	printf("move: %s, %ld faults\n", ends ? "ends" : "does not end", upcalls);
	return 0;
}

int main(int argc, char **argv)
{
	struct ulpf_query q = { .size = sizeof q, .version = ULPF_VERSION };
	const size_t size = 16 * PAGE;

	fd = open("/dev/ulpf", O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0 && ioctl(fd, ULPF_QUERY, &q) == 0);
	CHECK((q.features & (ULPF_FEATURE_READ | ULPF_FEATURE_PLI_LOOSEN | ULPF_FEATURE_ONCE)) ==
	      (ULPF_FEATURE_READ | ULPF_FEATURE_PLI_LOOSEN | ULPF_FEATURE_ONCE));
	guarded = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, ULPF_MAP_GUARD);
	alias = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, ULPF_MAP_ALIAS);
	CHECK(guarded != MAP_FAILED && alias != MAP_FAILED);
	CHECK(mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, ULPF_MAP_GUARD) == MAP_FAILED);
	if (argc > 1 && !strcmp(argv[1], "once"))
		return once();
	if (argc > 1 && !strcmp(argv[1], "unhandled"))
		return set(guarded, PAGE, ULPF_RO), guarded[1] = 1;
	guarded[3] = 5;
	CHECK(alias[3] == 5);
	CHECK(handler(0) == 0 && handler(0) == -1);
	CHECK(set(guarded, PAGE, ULPF_RO) == 0 && set(alias, PAGE, ULPF_RO) == -1);

	// The handler stores through the alias, and skips the instruction.
	skip = 3;
	asm volatile("movb $1, (%0)" :: "a"(guarded + 7) : "memory");
	CHECK(upcalls == 1 && guarded[7] == 9 && seen.addr == (uintptr_t)guarded + 7);
	CHECK(seen.cookie == 42 && seen.info == (ULPF_INFO_WRITE | ULPF_RO << ULPF_INFO_PERM_SHIFT));
	guarded[PAGE] = 1;
	CHECK(upcalls == 1);
	// A handler that just returns, and has not asked for write-once: the same fault again, and again.
	skip = 0;
	most = 20;
	CHECK(!modify(guarded + 7) && upcalls == 21 && alias[7] == 9);
	most = 0;
	// Write-once, also across pages and for a read-modify-write.
	upcalls = 0;
	CHECK(handler(ULPF_HANDLER_REPLACE | ULPF_HANDLER_ONCE) == 0);
	CHECK(modify(guarded + 7) && upcalls == 1 && alias[7] == 10);
	CHECK(modify(guarded + 7) && upcalls == 2 && alias[7] == 11);
	CHECK(set(guarded, 2 * PAGE, ULPF_RO) == 0);
	upcalls = 0;
	*(volatile uint64_t *)(guarded + PAGE - 3) = 0x1122334455667788;
	CHECK(upcalls == 2 && *(volatile uint64_t *)(alias + PAGE - 3) == 0x1122334455667788);

	// Loads, in a batch that ends at its first bad operation.
	struct ulpf_op ops[3] = {
		{ ULPF_OP_SET, 0, (uintptr_t)guarded, PAGE, ULPF_RW },
		{ ULPF_OP_SET, 0, (uintptr_t)guarded + PAGE, 2 * PAGE, ULPF_NONE },
		{ ULPF_OP_SET, 0, (uintptr_t)guarded, 100, ULPF_RW },
	};
	struct ulpf_batch b = { .size = sizeof b, .ops = (uintptr_t)ops, .count = 3, .op_size = sizeof ops[0] };
	CHECK(ioctl(fd, ULPF_BATCH, &b) == -1 && b.done == 2);
	upcalls = 0;
	guarded[7] = 4;
	CHECK(upcalls == 0);
	alias[PAGE] = 6;
	CHECK(guarded[PAGE] == 6 && upcalls == 1 && !(seen.info & ULPF_INFO_WRITE));

	// A region of the program's own: a store to it is a change.
	volatile char *pli = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, ULPF_MAP_PLI);
	volatile char *place = mmap((void *)0x600000000000, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
				    ULPF_MAP_GUARD + size);
	struct ulpf_op bind = { ULPF_OP_BIND, 0, (uintptr_t)place, 2 << 20, (uintptr_t)pli + 128 };
	CHECK(pli != MAP_FAILED && place != MAP_FAILED && ioctl(fd, ULPF_APPLY, &bind) == 0);
	bind.arg = (uintptr_t)pli;	// the library's
	CHECK(ioctl(fd, ULPF_APPLY, &bind) == -1);
	upcalls = 0;
	pli[128] = ULPF_RO;
	place[1] = 2;
	CHECK(upcalls == 1 && place[1] == 2);
	// A loosened permission is honoured at the next fault, a tightened one after SYNC.
	pli[128] = ULPF_RW;
	place[1] = 3;
	CHECK(upcalls == 1);
	pli[128] = ULPF_RO;
	struct ulpf_op sync = { ULPF_OP_SYNC, 0, (uintptr_t)place, PAGE, 0 };
	CHECK(ioctl(fd, ULPF_APPLY, &sync) == 0);
	place[1] = 4;
	CHECK(upcalls == 2);
	// ULPF_OP_SET writes the region.
	CHECK(set(place, PAGE, ULPF_NONE) == 0 && pli[128] == ULPF_NONE);
	struct ulpf_page page = { .size = sizeof page, .addr = (uintptr_t)place + 9 };
	CHECK(ioctl(fd, ULPF_LOOKUP, &page) == 0 && page.permission == ULPF_NONE);
	CHECK(page.state == (ULPF_PAGE_GUARDED | ULPF_PAGE_BOUND));
	bind.op = ULPF_OP_UNBIND, bind.arg = 0;
	CHECK(ioctl(fd, ULPF_APPLY, &bind) == 0 && ioctl(fd, ULPF_APPLY, &bind) == -1);
	place[1] = 5;
	CHECK(upcalls == 2 && munmap((void *)guarded, size) == 0);
	CHECK(set(guarded, PAGE, ULPF_RO) == -1 && alias[3] == 5);
	printf("upcalls: done\n");
	return 0;
}
