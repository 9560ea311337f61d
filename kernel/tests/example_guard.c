// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Kefence's idea for a program's buffers: each ends where a guardian page begins. An overflow
 * is in the log, with the instruction that made it, or stops the program.
 */
#include "test.h"

static struct space *heap;
static size_t used;

static char *guarded_alloc(size_t size, unsigned int guard)
{
	size_t pages = (size + PAGE - 1) / PAGE;
	char *at = heap->guarded + used;

	used += (pages + 1) * PAGE;
	EXPECT(used <= heap->size);
	EXPECT_EQ(apply(heap, ULPF_OP_GUARD, at + pages * PAGE, PAGE, guard), 0);
	return at + pages * PAGE - size;
}

__attribute__((noinline, aligned(64))) static void copy_name(char *to, const char *from)
{
	while ((*(volatile char *)to++ = *from++))
		;
}

static struct ulpf_event event[16];

TEST(overflow_is_logged_and_the_program_goes_on)
{
	char *name, *next;

	heap = space_make(64);
	EXPECT_EQ(ring(heap, 64, 1, 0), 0);
	name = guarded_alloc(8, ULPF_GUARD_LOG);
	next = guarded_alloc(100, ULPF_GUARD_LOG);
	copy_name(next, "fits");
	copy_name(name, "seven..");
	EXPECT_EQ(events(heap, event, 16), 0);
	copy_name(name, "eight...");
	EXPECT_EQ(events(heap, event, 16), 1);
	EXPECT_EQ(event[0].type, ULPF_EVENT_GUARD);
	EXPECT_EQ(event[0].addr, (uintptr_t)name + 8);
	EXPECT(event[0].info & ULPF_INFO_WRITE);
	EXPECT(event[0].ip - (uintptr_t)copy_name < 64);
	EXPECT_EQ(memcmp(next, "fits", 5), 0);
}

/* Overflows by the kernel, too: read() with a size that is too large. */
TEST(overflow_by_a_system_call_is_logged)
{
	int file = memfd_create("input", 0);
	char *buffer;

	heap = space_make(64);
	EXPECT_EQ(ring(heap, 64, 1, 0), 0);
	buffer = guarded_alloc(512, ULPF_GUARD_LOG);
	EXPECT_EQ(ftruncate(file, 600), 0);
	EXPECT_EQ(pread(file, buffer, 512, 0), 512);
	EXPECT_EQ(events(heap, event, 16), 0);
	EXPECT_EQ(pread(file, buffer, 600, 0), 600);
	EXPECT_EQ(events(heap, event, 16), 1);
	EXPECT_EQ(event[0].addr, (uintptr_t)buffer + 512);
	EXPECT_EQ(event[0].syscall, 17);	/* pread64 */
}

static void overflow_in_a_strict_program(void)
{
	heap = space_make(64);
	copy_name(guarded_alloc(8, ULPF_GUARD_STOP), "much too long");
}

TEST(overflow_stops_a_strict_program)
{
	EXPECT_SIGNAL(overflow_in_a_strict_program, SIGSEGV);
}
