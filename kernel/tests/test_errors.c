// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Bad input: the errors that the interface promises, and nothing else happens. */
#include "test.h"

static struct space *space;

static int raw(unsigned long command, void *arg)
{
	return ioctl(space->fd, command, arg);
}

TEST(query_tells_version_and_features)
{
	struct ulpf_query query = { .size = sizeof(query), .version = ULPF_VERSION };

	space = space_make(1);
	EXPECT_EQ(raw(ULPF_QUERY, &query), 0);
	EXPECT_EQ(query.version, ULPF_VERSION);
	EXPECT_EQ(query.machine, ULPF_MACHINE_LINUX);
	EXPECT(query.features & ULPF_FEATURE_PLI_LOOSEN && !(query.features & ULPF_FEATURE_PLI_TIGHTEN));
	EXPECT(!(query.features & (ULPF_FEATURE_ONCE | ULPF_FEATURE_EXE)));
	EXPECT(query.batch_max >= 10000 && query.ring_max >= 4096);
	query.version = 7;
	EXPECT_ERRNO(raw(ULPF_QUERY, &query), EPROTONOSUPPORT);
	EXPECT_EQ(query.version, ULPF_VERSION);
}

TEST(sizes_of_structures)
{
	struct { struct ulpf_query query; uint64_t more[4]; } later = { .query = { .size = sizeof(later), .version = 1 } };

	space = space_make(1);
	EXPECT_EQ(raw(ULPF_QUERY, &later), 0);		/* a newer caller */
	later.query = (struct ulpf_query){ .size = sizeof(later), .version = 1 };
	later.more[3] = 1;				/* ... that asks for what we do not know */
	EXPECT_ERRNO(raw(ULPF_QUERY, &later), E2BIG);
	later.query.size = sizeof(struct ulpf_query) - 8;
	EXPECT_ERRNO(raw(ULPF_QUERY, &later), EINVAL);
	later.query.size = 0;
	EXPECT_ERRNO(raw(ULPF_QUERY, &later), EINVAL);
	later.query.size = 0xffffffff;
	EXPECT_ERRNO(raw(ULPF_QUERY, &later), E2BIG);
	EXPECT_ERRNO(raw(ULPF_QUERY, NULL), EFAULT);
	EXPECT_ERRNO(raw(ULPF_QUERY, (void *)0xffff888000000000), EFAULT);
}

TEST(calls_that_are_none)
{
	unsigned int number;

	space = space_make(1);
	for (number = 0; number < 256; number++)
		if (number < 0x20 || number > 0x29)
			EXPECT_ERRNO(raw(_IO(ULPF_IOC_TYPE, number), NULL), ENOTTY);
	EXPECT_ERRNO(raw(0x5401, NULL), ENOTTY);
	EXPECT_ERRNO(raw(_IOWR('f', 0x20, struct ulpf_query), NULL), ENOTTY);
}

TEST(handlers_that_cannot_be)
{
	static char data[16];
	char *gone = mmap(NULL, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ulpf_handler arg = { .size = sizeof(arg), .flags = 1U << 31, .entry = (uintptr_t)entry };

	space = space_make(1);
	EXPECT_ERRNO(handler(space, (void *)0xffffffff81000000, 0), EFAULT);
	EXPECT_ERRNO(handler(space, (void *)0x800000000000, 0), EFAULT);
	munmap(gone, PAGE);
	EXPECT_ERRNO(handler(space, gone, 0), EFAULT);
	EXPECT_ERRNO(handler(space, data, 0), EACCES);
	EXPECT_ERRNO(raw(ULPF_HANDLER, &arg), EINVAL);
	EXPECT_ERRNO(handler(space, entry, ULPF_HANDLER_ONCE), EOPNOTSUPP);
	EXPECT_ERRNO(handler(space, NULL, 0), ENOENT);
	EXPECT_EQ(handler(space, entry, 0), 0);
	EXPECT_ERRNO(handler(space, entry, 0), EBUSY);
	EXPECT_EQ(handler(space, entry, ULPF_HANDLER_REPLACE), 0);
	EXPECT_EQ(handler(space, NULL, 0), 0);
	EXPECT_EQ(handler(space, entry, 0), 0);
}

TEST(ranges_that_are_wrong)
{
	char *other = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ulpf_op op = { ULPF_OP_SET, 1, 0, PAGE, ULPF_RO };
	char *at;

	space = space_make(4);
	at = space->guarded;
	EXPECT_ERRNO(set(space, at + 1, PAGE, ULPF_RO), EINVAL);
	EXPECT_ERRNO(set(space, at, 100, ULPF_RO), EINVAL);
	EXPECT_ERRNO(set(space, at, 0, ULPF_RO), EINVAL);
	EXPECT_ERRNO(set(space, (void *)-PAGE, 2 * PAGE, ULPF_RO), EINVAL);
	EXPECT_ERRNO(set(space, at, PAGE, 4), EINVAL);
	EXPECT_ERRNO(set(space, at, PAGE, ULPF_EXE), EOPNOTSUPP);
	EXPECT_ERRNO(set(space, other, PAGE, ULPF_RO), ENOMEM);
	EXPECT_ERRNO(set(space, space->alias, PAGE, ULPF_RO), ENOMEM);
	EXPECT_ERRNO(set(space, (void *)0xffff800000000000, PAGE, ULPF_RO), ENOMEM);
	EXPECT_ERRNO(apply(space, ULPF_OP_GUARD, at, PAGE, 3), EINVAL);
	EXPECT_ERRNO(apply(space, ULPF_OP_SYNC, at, PAGE, 1), EINVAL);
	EXPECT_ERRNO(apply(space, 0, at, PAGE, 0), EINVAL);
	EXPECT_ERRNO(apply(space, 6, at, PAGE, 0), EINVAL);
	op.addr = (uintptr_t)at;
	EXPECT_ERRNO(raw(ULPF_APPLY, &op), EINVAL);
	EXPECT_ERRNO(raw(ULPF_APPLY, NULL), EFAULT);
	/* A hole in the middle: nothing of it is changed. */
	munmap(at + 2 * PAGE, PAGE);
	EXPECT_ERRNO(set(space, at, 4 * PAGE, ULPF_RO), ENOMEM);
	EXPECT_EQ(lookup(space, at).permission, ULPF_RW);
}

TEST(mappings_that_are_wrong)
{
#define MAP(length, prot, flags, offset) \
	(mmap(NULL, length, prot, flags, space->fd, offset) == MAP_FAILED ? -1 : 0)
	int read_only;

	space = space_make(1);
	EXPECT_ERRNO(MAP(PAGE, PROT_READ, MAP_PRIVATE, ULPF_MAP_GUARD), EINVAL);
	EXPECT_ERRNO(MAP(2 * PAGE, PROT_READ, MAP_SHARED, ULPF_MAP_GUARD + ULPF_STORE_SIZE - PAGE), EINVAL);
	EXPECT_ERRNO(MAP(PAGE, PROT_READ, MAP_SHARED, 0x4000000000000000), EINVAL);
	EXPECT_ERRNO(MAP(PAGE, PROT_READ, MAP_SHARED, ULPF_MAP_RING), ENXIO);
	EXPECT_EQ(ring(space, 64, 1, 0), 0);
	EXPECT_ERRNO(MAP(PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, ULPF_MAP_RING), EINVAL);
	EXPECT_ERRNO(MAP(3 * PAGE, PROT_READ, MAP_SHARED, ULPF_MAP_RING), EINVAL);
	EXPECT_ERRNO(MAP(PAGE, PROT_READ, MAP_SHARED, ULPF_MAP_RING + PAGE), EINVAL);
	EXPECT_EQ(MAP(2 * PAGE, PROT_READ, MAP_SHARED, ULPF_MAP_RING), 0);
	read_only = open(ULPF_DEVICE, O_RDONLY);
	EXPECT(read_only < 0 && errno == EACCES);
}

TEST(rings_that_cannot_be)
{
	struct ulpf_event event;

	space = space_make(1);
	EXPECT_ERRNO(read(space->fd, &event, sizeof(event)), ENXIO);
	EXPECT_ERRNO(ring(space, 63, 1, 0), EINVAL);
	EXPECT_ERRNO(ring(space, 32, 1, 0), EINVAL);
	EXPECT_ERRNO(ring(space, 1 << 30, 1, 0), EINVAL);
	EXPECT_ERRNO(ring(space, 64, 0, 0), EINVAL);
	EXPECT_ERRNO(ring(space, 64, 33, 0), EINVAL);
	EXPECT_ERRNO(ring(space, 64, 1, 10000001), EINVAL);
	EXPECT_EQ(ring(space, 64, 32, 0), 0);
	EXPECT_ERRNO(ring(space, 64, 32, 0), EBUSY);
	EXPECT_ERRNO(read(space->fd, &event, sizeof(event) - 1), EINVAL);
}

TEST(stacks_that_cannot_be)
{
	struct ulpf_stack stack = { .size = sizeof(stack) };

	space = space_make(1);
	EXPECT_ERRNO(raw(ULPF_STACK, &stack), ENOENT);
	stack.base = 0x10008;
	stack.length = 0x2000;
	EXPECT_ERRNO(raw(ULPF_STACK, &stack), EINVAL);
	stack.base = 0x10000;
	stack.length = ULPF_STACK_MIN - 16;
	EXPECT_ERRNO(raw(ULPF_STACK, &stack), EINVAL);
	stack.length = 0x2000;
	stack.base = 0xffffffff80000000;
	EXPECT_ERRNO(raw(ULPF_STACK, &stack), EFAULT);
	stack.flags = 1;
	EXPECT_ERRNO(raw(ULPF_STACK, &stack), EINVAL);
}

TEST(batches_that_are_wrong)
{
	struct ulpf_batch arg = { .size = sizeof(arg), .op_size = 24 };

	space = space_make(1);
	EXPECT_ERRNO(raw(ULPF_BATCH, &arg), EINVAL);
	arg.op_size = 32;
	arg.reserved = 1;
	EXPECT_ERRNO(raw(ULPF_BATCH, &arg), EINVAL);
	arg.reserved = 0;
	arg.flags = 1;
	EXPECT_ERRNO(raw(ULPF_BATCH, &arg), EINVAL);
	arg.flags = 0;
	arg.count = 0xffffffff;
	EXPECT_ERRNO(raw(ULPF_BATCH, &arg), E2BIG);
}
