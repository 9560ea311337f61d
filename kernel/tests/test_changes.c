// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Batches, PLI regions, guard ranges. */
#include "test.h"

static int batch(struct space *space, struct ulpf_op *ops, uint32_t count, uint32_t *done)
{
	struct ulpf_batch arg = { .size = sizeof(arg), .ops = (uintptr_t)ops, .count = count, .op_size = sizeof(*ops) };
	int result = ioctl(space->fd, ULPF_BATCH, &arg);

	*done = arg.done;
	return result;
}

TEST(batch_changes_many_pages)
{
	enum { COUNT = 3000 };
	struct space *space = space_make(COUNT);
	static struct ulpf_op ops[COUNT];
	uint32_t done;
	int i;

	EXPECT_EQ(handler(space, entry, 0), 0);
	on_fault = store_byte;
	for (i = 0; i < COUNT; i++)
		put(space->guarded + i * PAGE, 1);
	for (i = 0; i < COUNT; i++) {
		/* Not in order: 1009 is a prime. */
		size_t page = (size_t)i * 1009 % COUNT;

		ops[i] = (struct ulpf_op){ ULPF_OP_SET, 0, (uintptr_t)space->guarded + page * PAGE, PAGE,
					   page % 3 ? ULPF_RO : ULPF_RW };
	}
	EXPECT_EQ(batch(space, ops, COUNT, &done), 0);
	EXPECT_EQ(done, COUNT);
	for (i = 0; i < COUNT; i++) {
		unsigned long before = faults;

		put(space->guarded + i * PAGE, 2);
		EXPECT_EQ(faults - before, i % 3 != 0);
	}
	EXPECT_EQ(counts(space).changes, COUNT);
	EXPECT(counts(space).flushes < COUNT / 10);
}

TEST(batch_stops_at_the_first_failure)
{
	struct space *space = space_make(16);
	struct ulpf_op ops[1000];
	uint32_t done;
	int i;

	for (i = 0; i < 1000; i++)
		ops[i] = (struct ulpf_op){ ULPF_OP_SET, 0, (uintptr_t)space->guarded + i % 16 * PAGE, PAGE, ULPF_RO };
	ops[700].addr += 1;
	ops[900].op = 99;
	EXPECT_ERRNO(batch(space, ops, 1000, &done), EINVAL);
	EXPECT_EQ(done, 700);
	EXPECT_EQ(lookup(space, space->guarded + 15 * PAGE).permission, ULPF_RO);
	ops[3].addr = 0x1000;
	EXPECT_ERRNO(batch(space, ops, 1000, &done), ENOMEM);
	EXPECT_EQ(done, 3);
	EXPECT_EQ(batch(space, ops, 0, &done), 0);
	EXPECT_EQ(done, 0);
	/* The array ends at unmapped memory. */
	EXPECT_ERRNO(batch(space, (struct ulpf_op *)16, 4, &done), EFAULT);
	EXPECT_EQ(done, 0);
}

static char *pli_map(struct space *space, size_t pages)
{
	return mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, space->fd, ULPF_MAP_PLI);
}

#define PREFIX (2UL << 20)

/* A guarded mapping of some prefixes, at a boundary. */
static char *prefixes(struct space *space, size_t count)
{
	char *room = mmap(NULL, (count + 1) * PREFIX, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *at = (char *)(((uintptr_t)room + PREFIX - 1) & ~(PREFIX - 1));

	EXPECT(mmap(at, count * PREFIX, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, space->fd, ULPF_MAP_GUARD) == at);
	space->guarded = at;
	space->alias = mmap(NULL, count * PREFIX, PROT_READ | PROT_WRITE, MAP_SHARED, space->fd, ULPF_MAP_ALIAS);
	return at;
}

/* The thesis's modify_pli(), for all four values. */
static void modify(char *region, const char *addr, unsigned int permission)
{
	size_t bit = ((uintptr_t)addr >> 12 & 511) * 2;
	char *byte = region + bit / 8;

	*byte = (*byte & ~(3 << bit % 8)) | permission << bit % 8;
}

static char *pli, *watched;

static void open_by_store(struct ulpf_frame *frame)
{
	modify(pli + 128, (char *)frame->addr, ULPF_RW);
}

TEST(pli_store_opens_at_once_and_sync_closes)
{
	struct space *space = space_make(1);
	int round;

	watched = prefixes(space, 2);
	pli = pli_map(space, 2);
	EXPECT(pli != MAP_FAILED);
	EXPECT_EQ(handler(space, entry, 0), 0);
	on_fault = open_by_store;
	modify(pli + 128, watched + 7 * PAGE, ULPF_RO);
	EXPECT_EQ(apply(space, ULPF_OP_BIND, watched, PREFIX, (uintptr_t)pli + 128), 0);
	EXPECT_EQ(lookup(space, watched).state, ULPF_PAGE_GUARDED | ULPF_PAGE_BOUND);
	EXPECT_EQ(lookup(space, watched + 7 * PAGE).permission, ULPF_RO);
	for (round = 1; round <= 20; round++) {
		put(watched + 7 * PAGE, round);
		EXPECT_EQ(faults, round);
		put(watched + 7 * PAGE, round);
		EXPECT_EQ(faults, round);
		EXPECT_EQ(watched[7 * PAGE], round);
		modify(pli + 128, watched + 7 * PAGE, round % 2 ? ULPF_NONE : ULPF_RO);
		EXPECT_EQ(apply(space, ULPF_OP_SYNC, watched + 7 * PAGE, PAGE, 0), 0);
	}
	/* The neighbour prefix has no region. */
	put(watched + PREFIX + 7 * PAGE, 1);
	EXPECT_EQ(faults, 20);
}

TEST(set_writes_the_pli_region)
{
	struct space *space = space_make(1);

	watched = prefixes(space, 1);
	pli = pli_map(space, 1);
	EXPECT_EQ(apply(space, ULPF_OP_BIND, watched, PREFIX, (uintptr_t)pli + 31 * 128), 0);
	EXPECT_EQ(set(space, watched + PAGE, 6 * PAGE, ULPF_RO), 0);
	EXPECT_EQ((unsigned char)pli[31 * 128], 0x54);
	EXPECT_EQ((unsigned char)pli[31 * 128 + 1], 0x15);
	/* A store that had not been synced is, with the next set. */
	EXPECT_EQ(handler(space, entry, 0), 0);
	on_fault = store_byte;
	put(watched + 9 * PAGE, 1);
	modify(pli + 31 * 128, watched + 9 * PAGE, ULPF_RO);
	EXPECT_EQ(set(space, watched + 9 * PAGE, PAGE, ULPF_RO), 0);
	put(watched + 9 * PAGE, 2);
	EXPECT_EQ(faults, 1);
	/* A permission that the machine does not support forbids everything. */
	modify(pli + 31 * 128, watched + 9 * PAGE, ULPF_EXE);
	EXPECT_EQ(apply(space, ULPF_OP_SYNC, watched, PREFIX, 0), 0);
	on_fault = load_byte;
	get(watched + 9 * PAGE);
	EXPECT_EQ(faults, 2);
	EXPECT_EQ(apply(space, ULPF_OP_UNBIND, watched, PREFIX, 0), 0);
	put(watched + 9 * PAGE, 2);
	EXPECT_EQ(faults, 2);
}

TEST(pli_refuses_what_is_wrong)
{
	struct space *space = space_make(1), *other = space_make(1);
	char *theirs = pli_map(other, 1);

	watched = prefixes(space, 3);
	pli = pli_map(space, 1);
	EXPECT_ERRNO(apply(space, ULPF_OP_BIND, watched, PREFIX, (uintptr_t)pli), EINVAL);		/* region 0 */
	EXPECT_ERRNO(apply(space, ULPF_OP_BIND, watched, PREFIX, (uintptr_t)pli + 130), EINVAL);	/* misaligned */
	EXPECT_ERRNO(apply(space, ULPF_OP_BIND, watched + PAGE, PREFIX, (uintptr_t)pli + 128), EINVAL);
	EXPECT_ERRNO(apply(space, ULPF_OP_BIND, watched, PAGE, (uintptr_t)pli + 128), EINVAL);
	EXPECT_ERRNO(apply(space, ULPF_OP_BIND, watched, PREFIX, (uintptr_t)watched + 128), EFAULT);
	EXPECT_ERRNO(apply(space, ULPF_OP_BIND, watched, PREFIX, (uintptr_t)theirs + 128), EFAULT);
	EXPECT_ERRNO(apply(space, ULPF_OP_BIND, (void *)0xffffffff80000000, PREFIX, (uintptr_t)pli + 128), EFAULT);
	EXPECT_EQ(apply(space, ULPF_OP_BIND, watched, PREFIX, (uintptr_t)pli + 128), 0);
	EXPECT_EQ(apply(space, ULPF_OP_BIND, watched, PREFIX, (uintptr_t)pli + 128), 0);		/* the same */
	EXPECT_ERRNO(apply(space, ULPF_OP_BIND, watched, PREFIX, (uintptr_t)pli + 256), EBUSY);		/* two regions */
	EXPECT_ERRNO(apply(space, ULPF_OP_BIND, watched + PREFIX, PREFIX, (uintptr_t)pli + 128), EBUSY); /* two prefixes */
	EXPECT_ERRNO(apply(space, ULPF_OP_UNBIND, watched + PREFIX, PREFIX, 0), ENOENT);
	EXPECT_EQ(apply(space, ULPF_OP_UNBIND, watched, PREFIX, 0), 0);
	EXPECT_EQ(apply(space, ULPF_OP_BIND, watched + PREFIX, PREFIX, (uintptr_t)pli + 128), 0);
	EXPECT_ERRNO(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, space->fd, ULPF_MAP_PLI + ULPF_PLI_PAGES * PAGE) == MAP_FAILED ? -1 : 0, EINVAL);
	/* A region outlives its mapping. */
	modify(pli + 128, watched + PREFIX, ULPF_RO);
	EXPECT_EQ(munmap(pli, PAGE), 0);
	EXPECT_EQ(lookup(space, watched + PREFIX).permission, ULPF_RO);
}

TEST(guard_range_logs_once_and_goes_on)
{
	struct space *space = space_make(8);
	struct ulpf_event event[8];

	EXPECT_EQ(ring(space, 64, 1, 0), 0);
	EXPECT_EQ(apply(space, ULPF_OP_GUARD, space->guarded + 4 * PAGE, 2 * PAGE, ULPF_GUARD_LOG), 0);
	EXPECT_EQ(lookup(space, space->guarded + 4 * PAGE).guard, ULPF_GUARD_LOG);
	put(space->guarded + 4 * PAGE - 1, 1);
	EXPECT_EQ(events(space, event, 8), 0);
	put(space->guarded + 4 * PAGE + 3, 1);
	put(space->guarded + 4 * PAGE + 4, 1);
	EXPECT_EQ(events(space, event, 8), 1);
	EXPECT_EQ(event[0].type, ULPF_EVENT_GUARD);
	EXPECT_EQ(event[0].addr, (uintptr_t)space->guarded + 4 * PAGE + 3);
	EXPECT_EQ(event[0].ip, (uintptr_t)put);
	EXPECT_EQ(get(space->guarded + 5 * PAGE), 0);
	EXPECT_EQ(events(space, event, 8), 1);
	EXPECT_EQ(event[0].info, 0);
	EXPECT_EQ(counts(space).guards, 2);
}

static void overrun(void)
{
	put(the_space->guarded + 4 * PAGE, 1);
}

static void overrun_in_a_child_of_its_own(void)
{
	struct space *space = space_make(8);
	int file = memfd_create("file", 0);

	EXPECT_EQ(apply(space, ULPF_OP_GUARD, space->guarded + 4 * PAGE, PAGE, ULPF_GUARD_STOP), 0);
	EXPECT_EQ(ftruncate(file, 100), 0);
	EXPECT_ERRNO(pread(file, space->guarded + 4 * PAGE, 100, 0), EFAULT);
	/* Reads up to the guard range succeed, as a short count. */
	EXPECT_EQ(pread(file, space->guarded + 4 * PAGE - 50, 100, 0), 50);
	EXPECT(counts(space).guards >= 2);
	overrun();
}

TEST(guard_range_stops)
{
	EXPECT_SIGNAL(overrun_in_a_child_of_its_own, SIGSEGV);
}

TEST(guard_comes_before_permissions_and_goes)
{
	struct space *space = space_make(4);

	EXPECT_EQ(handler(space, entry, 0), 0);
	on_fault = store_byte;
	EXPECT_EQ(set(space, space->guarded, PAGE, ULPF_RO), 0);
	EXPECT_EQ(apply(space, ULPF_OP_GUARD, space->guarded, PAGE, ULPF_GUARD_LOG), 0);
	put(space->guarded, 1);
	EXPECT_EQ(faults, 1);
	EXPECT_EQ(counts(space).guards, 1);
	EXPECT_EQ(apply(space, ULPF_OP_GUARD, space->guarded, space->size, ULPF_GUARD_STOP), 0);
	EXPECT_EQ(apply(space, ULPF_OP_GUARD, space->guarded, space->size, ULPF_GUARD_OFF), 0);
	put(space->guarded + PAGE, 1);
	EXPECT_EQ(lookup(space, space->guarded).permission, ULPF_RO);
}
