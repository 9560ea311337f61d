// A program for /dev/ulpf: the handler makes the access through the alias, and skips the instruction.
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>
#include "ulpf.h"

#define CHECK(x) do { if (!(x)) { printf("line %d: %s\n", __LINE__, #x); return 1; } } while (0)

static volatile long upcalls, skip;
static volatile char *guarded, *alias;
static volatile struct ulpf_frame seen;

__attribute__((used, target("general-regs-only"))) static void handle(struct ulpf_frame *f)
{
	upcalls++;
	seen = *f;
	if (skip) {
		alias[f->addr - (uintptr_t)guarded] = 9;
		f->ip += skip;
	}
}

extern char entry[];
asm("entry:\n"
    "push %rax; push %rcx; push %rdx; push %rsi; push %rdi; push %r8; push %r9; push %r10; push %r11; push %rbp\n"
    "lea 80(%rsp), %rdi\n call handle\n"
    "pop %rbp; pop %r11; pop %r10; pop %r9; pop %r8; pop %rdi; pop %rsi; pop %rdx; pop %rcx; pop %rax\n"
    "add $24, %rsp\n iretq\n");

int main(void)
{
	int fd = open("/dev/ulpf", O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0);
	struct ulpf_query q = { .size = sizeof q, .version = ULPF_VERSION };
	CHECK(ioctl(fd, ULPF_QUERY, &q) == 0 && q.machine == ULPF_MACHINE_UNICORN && q.features & ULPF_FEATURE_ONCE);
	struct ulpf_counts counts = { .size = sizeof counts };
	CHECK(ioctl(fd, ULPF_COUNTS, &counts) == 0 && counts.upcalls == 0);
	const size_t size = 16 * 4096;
	guarded = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, ULPF_MAP_GUARD);
	alias = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, ULPF_MAP_ALIAS);
	CHECK(guarded != MAP_FAILED && alias != MAP_FAILED);
	CHECK(mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, ULPF_MAP_GUARD) == MAP_FAILED);
	guarded[3] = 5;
	CHECK(alias[3] == 5);

	struct ulpf_handler h = { .size = sizeof h, .entry = (uintptr_t)entry, .cookie = 42 };
	CHECK(ioctl(fd, ULPF_HANDLER, &h) == 0 && ioctl(fd, ULPF_HANDLER, &h) == -1);
	struct ulpf_op op = { ULPF_OP_SET, 0, (uintptr_t)guarded, 4096, ULPF_RO };
	CHECK(ioctl(fd, ULPF_APPLY, &op) == 0);
	op.addr = (uintptr_t)alias;
	CHECK(ioctl(fd, ULPF_APPLY, &op) == -1);

	skip = 3;
	asm volatile("movb $1, (%0)" :: "a"(guarded + 7) : "memory");	// three bytes
	CHECK(upcalls == 1 && guarded[7] == 9 && seen.addr == (uintptr_t)guarded + 7);
	CHECK(seen.cookie == 42 && seen.info == (ULPF_INFO_WRITE | ULPF_RO << ULPF_INFO_PERM_SHIFT));
	CHECK(upcalls == 1 && guarded[4096] == 0);
	guarded[4096] = 1;
	CHECK(upcalls == 1);

	// The handler just returns: write-once, if asked for.
	h.flags = ULPF_HANDLER_REPLACE | ULPF_HANDLER_ONCE;
	CHECK(ioctl(fd, ULPF_HANDLER, &h) == 0);
	skip = 0;
	guarded[7] = 3;
	CHECK(upcalls == 2 && alias[7] == 3);

	// Loads, in a batch; it ends at its first bad operation.
	struct ulpf_op ops[3] = {
		{ ULPF_OP_SET, 0, (uintptr_t)guarded, 4096, ULPF_RW },
		{ ULPF_OP_SET, 0, (uintptr_t)guarded + 4096, 8192, ULPF_NONE },
		{ ULPF_OP_SET, 0, (uintptr_t)guarded, 100, ULPF_RW },
	};
	struct ulpf_batch b = { .size = sizeof b, .ops = (uintptr_t)ops, .count = 3, .op_size = sizeof ops[0] };
	CHECK(ioctl(fd, ULPF_BATCH, &b) == -1 && b.done == 2);
	guarded[7] = 4;
	CHECK(upcalls == 2);
	CHECK(guarded[4096] == 1 && upcalls == 3 && !(seen.info & ULPF_INFO_WRITE));

	// A region of the user's.
	volatile char *pli = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, ULPF_MAP_PLI);
	volatile char *place = mmap((void *)0x600000000000, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, ULPF_MAP_GUARD + size);
	struct ulpf_op bind = { ULPF_OP_BIND, 0, (uintptr_t)place, 2 << 20, (uintptr_t)pli + 128 };
	CHECK(pli != MAP_FAILED && place != MAP_FAILED && ioctl(fd, ULPF_APPLY, &bind) == 0);
	pli[128] = ULPF_RO;
	place[1] = 2;
	CHECK(upcalls == 4 && place[1] == 2);
	bind.op = ULPF_OP_UNBIND, bind.arg = 0;
	CHECK(ioctl(fd, ULPF_APPLY, &bind) == 0);
	place[1] = 3;
	CHECK(upcalls == 4 && munmap((void *)guarded, size) == 0);
	printf("device: done\n");
	return 0;
}
