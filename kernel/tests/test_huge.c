// SPDX-License-Identifier: GPL-2.0 OR MIT
/* The store may have huge pages, if the administrator and a mapping of it ask for them. Guards are for small ones. */
#include "test.h"

enum { HUGE = 2 << 20 };

static void *aligned(int fd, uint64_t offset, size_t size)
{
	char *room = mmap(NULL, size + HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *at = (char *)(((uintptr_t)room + HUGE - 1) & ~(HUGE - 1UL));

	EXPECT(mmap(at, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, offset) == at);
	return at;
}

static unsigned long huge_pages(void)
{
	char line[256];
	unsigned long kib = 0;
	FILE *file = fopen("/proc/meminfo", "r");

	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "ShmemHugePages: %lu", &kib) == 1)
			break;
	if (file)
		fclose(file);
	return kib;
}

static void guarded_in_huge_pages(const char *setting)
{
	int fd = open("/sys/kernel/mm/transparent_hugepage/shmem_enabled", O_WRONLY);
	struct space *space = space_make(1);
	struct ulpf_op ops[64];
	struct ulpf_batch batch = { .size = sizeof(batch), .ops = (uintptr_t)ops, .count = 64, .op_size = sizeof(*ops) };
	int i;

	if (fd < 0 || write(fd, setting, strlen(setting)) < 0)
		SKIP("this kernel has no huge pages for shared memory");
	close(fd);
	space->size = 2 * HUGE;
	space->alias = aligned(space->fd, ULPF_MAP_ALIAS, space->size);
	EXPECT_EQ(madvise(space->alias, space->size, MADV_HUGEPAGE), 0);
	space->alias[0] = 1;
	space->alias[HUGE] = 1;
	if (!huge_pages())
		SKIP("no huge page was to be had");
	space->guarded = aligned(space->fd, ULPF_MAP_GUARD, space->size);
	madvise(space->guarded, space->size, MADV_HUGEPAGE);
	EXPECT_EQ(handler(space, entry, 0), 0);
	on_fault = store_byte;
	EXPECT_EQ(set(space, space->guarded + 3 * PAGE, PAGE, ULPF_RO), 0);
	EXPECT_EQ(set(space, space->guarded + HUGE + 3 * PAGE, PAGE, ULPF_NONE), 0);
	/* The neighbours come into the page table first, one by a store and one by a load. */
	put(space->guarded, 2);
	get(space->guarded + HUGE);
	EXPECT_EQ(faults, 0);
	put(space->guarded + 3 * PAGE, 3);
	EXPECT_EQ(faults, 1);
	put(space->guarded + HUGE + 3 * PAGE, 3);
	EXPECT_EQ(faults, 2);
	for (i = 0; i < 64; i++) {
		put(space->guarded + (4 + i) * PAGE, i);
		ops[i] = (struct ulpf_op){ ULPF_OP_SET, 0, (uintptr_t)space->guarded + (4 + i) * PAGE, PAGE, ULPF_RO };
	}
	EXPECT_EQ(ioctl(space->fd, ULPF_BATCH, &batch), 0);
	for (i = 0; i < 64; i++)
		put(space->guarded + (4 + i) * PAGE, 1);
	EXPECT_EQ(faults, 2 + 64);
	/* Collapsing them into huge pages again changes nothing. */
	madvise(space->guarded, HUGE, 25 /* MADV_COLLAPSE */);
	madvise(space->alias, HUGE, 25);
	put(space->guarded, 2);
	put(space->guarded + 4 * PAGE, 1);
	EXPECT_EQ(faults, 2 + 64 + 1);
}

TEST(asked_for_by_a_mapping)
{
	guarded_in_huge_pages("advise");
}

TEST(everywhere)
{
	guarded_in_huge_pages("always");
}

TEST(by_force)
{
	guarded_in_huge_pages("force");
}

static volatile bool finished;

/* The alias's page tables are made one huge entry, and are taken apart again. */
static void *collapsing(void *arg)
{
	struct space *space = arg;

	while (!finished) {
		madvise(space->alias, HUGE, 25 /* MADV_COLLAPSE */);
		madvise(space->alias + 100 * PAGE, PAGE, MADV_REMOVE);
		space->alias[100 * PAGE] = 1;
	}
	return NULL;
}

/* A page table that goes in the midst of a fault does not come back as one entry for all of its pages. */
TEST(put_together_while_it_is_touched)
{
	struct space *space = space_make(1);
	pthread_t thread;
	int i;

	space->size = HUGE;
	space->alias = aligned(space->fd, ULPF_MAP_ALIAS, space->size);
	space->guarded = aligned(space->fd, ULPF_MAP_GUARD, space->size);
	madvise(space->alias, HUGE, MADV_HUGEPAGE);
	madvise(space->guarded, HUGE, MADV_HUGEPAGE);
	memset(space->alias, 1, HUGE);
	if (madvise(space->alias, HUGE, 25) && errno == EINVAL)
		SKIP("this kernel does not put pages together when it is asked to");
	EXPECT_EQ(handler(space, entry, 0), 0);
	on_fault = store_byte;
	EXPECT_EQ(pthread_create(&thread, NULL, collapsing, space), 0);
	for (i = 0; i < 3000; i++) {
		char *open = space->guarded + i % 50 * PAGE, *closed = space->guarded + (50 + i % 50) * PAGE;
		unsigned long before = faults;

		EXPECT_EQ(set(space, closed, PAGE, ULPF_RO), 0);
		put(open, 1);
		get(open);
		EXPECT_EQ(faults, before);
		put(closed, 2);
		EXPECT_EQ(faults, before + 1);
		EXPECT_EQ(set(space, closed, PAGE, i % 2 ? ULPF_RW : ULPF_NONE), 0);
	}
	finished = true;
	pthread_join(thread, NULL);
}

TEST(and_back)
{
	int fd = open("/sys/kernel/mm/transparent_hugepage/shmem_enabled", O_WRONLY);

	if (fd < 0)
		SKIP("this kernel has no huge pages for shared memory");
	EXPECT_EQ(write(fd, "never", 5), 5);
}
