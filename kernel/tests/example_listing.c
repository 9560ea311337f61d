// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The thesis's Listing 4.2, on the device: a handler that tells watchpoint hits from false
 * positives. Its four library calls are these; the watchlist is a sorted array here.
 */
#include "step.h"

static struct { uintptr_t from, to; } watch[16];
static int watches;
static uintptr_t fault_addr;
static void (*user)(void);

static unsigned long read_fault_addr(void)
{
	return fault_addr;
}

static int lookup_wp(void)
{
	int i;

	for (i = 0; i < watches; i++)
		if (watch[i].from <= read_fault_addr() && read_fault_addr() < watch[i].to)
			return 1;
	return 0;
}

static void on_frame(struct ulpf_frame *frame)
{
	fault_addr = frame->addr;
	user();
	step_over(frame);
}

static int register_user_handler(void (*user_handler)(void))
{
	user = user_handler;
	on_fault = on_frame;
	step_begin();
	return handler(the_space, entry, 0);
}

static long set_permissions(void *addr, size_t range, int perms)
{
	uintptr_t from = (uintptr_t)addr & ~(PAGE - 1), to = ((uintptr_t)addr + range + PAGE - 1) & ~(PAGE - 1);

	watch[watches].from = (uintptr_t)addr;
	watch[watches++].to = (uintptr_t)addr + range;
	return set(the_space, (void *)from, to - from, perms);
}

/* From here on it is the listing. */
static volatile int hits, false_positives;

static void user_handler(void)
{
	unsigned long addr = read_fault_addr();
	int found = lookup_wp();

	(void)addr;
	if (found)
		hits++;			/* printf("Watchpoint hit") */
	else
		false_positives++;	/* printf("False positive") */
}

TEST(thesis_listing_4_2)
{
	char *mm_addr = space_make(2)->guarded;
	int i;

	EXPECT_EQ(register_user_handler(user_handler), 0);
	EXPECT_EQ(set_permissions(mm_addr + 100, 8, ULPF_RO), 0);
	/* Regular program code. */
	for (i = 0; i < 256; i++)
		((volatile char *)mm_addr)[i] = i;
	for (i = 0; i < 256; i++)
		((volatile char *)mm_addr)[PAGE + i] = i;
	*(volatile uint64_t *)(mm_addr + 100) += 1;
	EXPECT_EQ(hits, 8 + 1);
	EXPECT_EQ(false_positives, 256 - 8);
	for (i = 108; i < 256; i++)
		EXPECT_EQ((unsigned char)mm_addr[i], i);
	EXPECT_EQ((unsigned char)mm_addr[100], 101);
}
