// SPDX-License-Identifier: GPL-2.0 OR MIT
/* When a change returns, no processor knows the page as open any more. */
#include "test.h"

#include <sched.h>

enum { PAGES = 200 };

static struct ulpf_op ops[PAGES];

static int batch(struct space *space, struct ulpf_op *list, uint32_t count, uint32_t *done)
{
	struct ulpf_batch arg = { .size = sizeof(arg), .ops = (uintptr_t)list, .count = count, .op_size = sizeof(*list) };
	int result = ioctl(space->fd, ULPF_BATCH, &arg);

	*done = arg.done;
	return result;
}

static void prepare(struct space *space, unsigned int permission)
{
	int i;

	for (i = 0; i < PAGES; i++)
		ops[i] = (struct ulpf_op){ ULPF_OP_SET, 0, (uintptr_t)space->guarded + i * PAGE, PAGE, permission };
}

/* Leaves the store out. */
static void skip(struct ulpf_frame *frame)
{
	frame->ip += 3;
}

static volatile bool stop;
static volatile unsigned long stored;

/* Stores to all pages over and over, so that this processor knows all of them. */
static void *storing(void *arg)
{
	struct space *space = arg;
	int i, value;

	for (value = 1; !stop; value++)
		for (i = 0; i < PAGES; i++) {
			put(space->guarded + i * PAGE, value);
			stored++;
		}
	return NULL;
}

static void wait_for(unsigned long more)
{
	unsigned long until = stored + more;

	while (stored < until)
		sched_yield();
}

/* 0: a list of pages; 1: one call for all of them; 2: a few; 3: they may not even be read. */
static void close_them(struct space *space, int how)
{
	uint32_t done;

	prepare(space, how == 3 ? ULPF_NONE : ULPF_RO);
	if (how == 1)
		EXPECT_EQ(set(space, space->guarded, space->size, ULPF_RO), 0);
	else if (how == 2)
		for (done = 0; done < PAGES; done += 2)
			EXPECT_EQ(set(space, space->guarded + done * PAGE, 2 * PAGE, ULPF_RO), 0);
	else
		EXPECT_EQ(batch(space, ops, PAGES, &done), 0);
}

static void close_while_storing(void)
{
	struct space *space = space_make(PAGES);
	static char seen[PAGES];
	pthread_t thread;
	int round, i;

	EXPECT_EQ(handler(space, entry, 0), 0);
	on_fault = skip;
	EXPECT_EQ(pthread_create(&thread, NULL, storing, space), 0);
	for (round = 0; round < 24; round++) {
		EXPECT_EQ(set(space, space->guarded, space->size, ULPF_RW), 0);
		wait_for(2 * PAGES);
		close_them(space, round % 4);
		/* Whatever is stored from now on is left out. */
		for (i = 0; i < PAGES; i++)
			seen[i] = space->alias[i * PAGE];
		wait_for(2 * PAGES);
		for (i = 0; i < PAGES; i++)
			EXPECT_EQ(space->alias[i * PAGE], seen[i]);
	}
	stop = true;
	pthread_join(thread, NULL);
}

TEST(another_processor_forgets_what_is_forbidden)
{
	close_while_storing();
}

static void *compacting(void *arg)
{
	int fd = open("/proc/sys/vm/compact_memory", O_WRONLY);

	(void)arg;
	while (fd >= 0 && !stop && write(fd, "1", 1) == 1)
		usleep(1000);
	return NULL;
}

/* Pages are on their way to another place meanwhile, and come back with the rights that they left with. */
TEST(pages_that_move)
{
	pthread_t thread;

	EXPECT_EQ(pthread_create(&thread, NULL, compacting, NULL), 0);
	close_while_storing();
	pthread_join(thread, NULL);
}

/* Page n: n % 4 is 0: permitted, 1 and 2: no stores, 3: no loads either. */
TEST(each_page_of_a_list_has_its_own_permission)
{
	struct space *space = space_make(PAGES);
	static const unsigned int permission[] = { ULPF_RW, ULPF_RO, ULPF_RO, ULPF_NONE };
	uint32_t done;
	int i, round;

	EXPECT_EQ(handler(space, entry, 0), 0);
	for (round = 0; round < 3; round++) {
		prepare(space, ULPF_RW);
		for (i = 0; i < PAGES; i++)
			ops[i].arg = permission[(i + round) % 4];
		on_fault = open_page;
		for (i = 0; i < PAGES; i++)
			put(space->guarded + i * PAGE, i);
		EXPECT_EQ(batch(space, ops, PAGES, &done), 0);
		for (i = 0; i < PAGES; i++) {
			unsigned int is = permission[(i + round) % 4];

			on_fault = load_byte;
			faults = 0;
			EXPECT_EQ(get(space->guarded + i * PAGE), (char)i);
			EXPECT_EQ(faults, is == ULPF_NONE);
			on_fault = store_byte;
			faults = 0;
			put(space->guarded + i * PAGE, i);
			EXPECT_EQ(faults, is != ULPF_RW);
		}
	}
}

/* A page whose entry lost the right to store may be permitted, guarded and unmapped as any other. */
TEST(pages_that_lost_the_right_to_be_stored_to)
{
	struct space *space = space_make(PAGES);
	int i;

	EXPECT_EQ(handler(space, entry, 0), 0);
	on_fault = store_byte;
	for (i = 0; i < PAGES; i++)
		put(space->guarded + i * PAGE, 1);
	EXPECT_EQ(set(space, space->guarded, space->size, ULPF_RO), 0);
	EXPECT_EQ(set(space, space->guarded, 50 * PAGE, ULPF_RW), 0);
	for (i = 0; i < 50; i++)
		put(space->guarded + i * PAGE, 2);
	EXPECT_EQ(faults, 0);
	EXPECT_EQ(apply(space, ULPF_OP_GUARD, space->guarded + 50 * PAGE, 50 * PAGE, ULPF_GUARD_LOG), 0);
	for (i = 50; i < 100; i++)
		EXPECT_EQ(get(space->guarded + i * PAGE), 1);
	EXPECT_EQ(counts(space).guards, 50);
	EXPECT_EQ(munmap(space->guarded + 100 * PAGE, 50 * PAGE), 0);
	put(space->guarded + 150 * PAGE, 3);
	EXPECT_EQ(faults, 1);
	EXPECT_EQ(space->alias[150 * PAGE], 3);
}

/* The kernel cannot wait for the list's memory under its lock: it comes back for it. */
TEST(list_that_is_not_in_memory_yet)
{
	struct space *space = space_make(PAGES);
	int file = memfd_create("list", 0);
	struct ulpf_op *list;
	uint32_t done;
	int round;

	for (round = 0; round < 2; round++) {
		prepare(space, round ? ULPF_RW : ULPF_RO);
		EXPECT_EQ(pwrite(file, ops, sizeof(ops), 0), sizeof(ops));
		list = mmap(NULL, sizeof(ops), PROT_READ, MAP_PRIVATE, file, 0);
		EXPECT(list != MAP_FAILED);
		EXPECT_EQ(madvise(list, sizeof(ops), MADV_RANDOM), 0);
		EXPECT_EQ(batch(space, list, PAGES, &done), 0);
		EXPECT_EQ(done, PAGES);
		munmap(list, sizeof(ops));
	}
	EXPECT_EQ(counts(space).changes, 2 * PAGES);
	/* It ends where memory does: what lies before that is carried out. */
	list = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	munmap(list + PAGE / sizeof(*list), PAGE);
	memcpy(list + PAGE / sizeof(*list) - 5, ops, 5 * sizeof(*ops));
	EXPECT_ERRNO(batch(space, list + PAGE / sizeof(*list) - 5, 9, &done), EFAULT);
	EXPECT_EQ(done, 5);
	/* An operation may fail with the very error. */
	ops[3] = (struct ulpf_op){ ULPF_OP_BIND, 0, 0x40000000, 2 << 20, 128 };
	EXPECT_ERRNO(batch(space, ops, 9, &done), EFAULT);
	EXPECT_EQ(done, 3);
}
