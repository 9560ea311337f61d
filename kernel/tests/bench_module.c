// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Benchmark of the module. Meant for one processor and -icount shift=0: then the time stamp counter counts
 * instructions, and figures repeat. Prints "bench NAME VALUE".
 */
#include "test.h"

#include <sys/resource.h>
#include <ucontext.h>
#include <x86intrin.h>

enum { ROUNDS = 20000, CHANGES = 10000, EVENTS = 20000 };

static void say(const char *name, double value)
{
	printf("bench %s %.3f\n", name, value);
}

static int by_value(const void *one, const void *other)
{
	uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;

	return a < b ? -1 : a > b;
}

/* Waits until no other task has used the processor for a while. */
static void settle(void)
{
	uint64_t least = ~0ULL;
	int calm = 0, i;

	while (calm < 100) {
		uint64_t begin = __rdtsc(), took;

		for (i = 0; i < 100000; i++)
			asm volatile("");
		took = __rdtsc() - begin;
		if (took < least)
			least = took;
		calm = took < least + least / 5 ? calm + 1 : 0;
	}
}

/*
 * Cost of an operation that is done ROUNDS times, as a median over slices, which excludes other work of the
 * kernel.
 */
enum { SLICES = 400 };
struct cost {
	uint64_t slice[SLICES];
};

static double median(struct cost *cost)
{
	qsort(cost->slice, SLICES, sizeof(*cost->slice), by_value);
	return (double)cost->slice[SLICES / 2] / (ROUNDS / SLICES);
}

/*
 * As little as a handler can be, as the signal handler below is: counts, stores sil through the
 * alias, skips the three bytes of put()'s store.
 */
extern char lean[];
unsigned long lean_distance;
asm("lean:	push %rax; push %rcx\n"
    "	incq faults(%rip)\n"
    "	mov 16(%rsp), %rcx; add lean_distance(%rip), %rcx; mov %sil, (%rcx)\n"
    "	mov 64(%rsp), %rax; lea -136(%rax), %rax\n"
    "	mov 40(%rsp), %rcx; lea 3(%rcx), %rcx; mov %rcx, (%rax); mov %rax, 64(%rsp)\n"
    "	pop %rcx; pop %rax\n"
    "	lea 40(%rsp), %rsp; popfq; pop %rsp; ret $128\n");

/* The program of the sketch: one store, whose handler makes it through the alias. */
static double stores(char *to)
{
	struct cost cost;
	int slice, i;

	for (i = 0; i < 1000; i++)
		put(to + i, i);
	settle();
	for (i = slice = 0; slice < SLICES; slice++) {
		uint64_t begin = __rdtsc();

		for (; i < ROUNDS / SLICES * (slice + 1); i++)
			put(to + i % 4096, i);
		cost.slice[slice] = __rdtsc() - begin;
	}
	return median(&cost);
}

/* ... and a load from the same page before each store. */
static double loads_and_stores(char *to)
{
	struct cost cost;
	int slice, i;

	settle();
	for (i = slice = 0; slice < SLICES; slice++) {
		uint64_t begin = __rdtsc();

		for (; i < ROUNDS / SLICES * (slice + 1); i++) {
			get(to + i % 4096);
			put(to + i % 4096, i);
		}
		cost.slice[slice] = __rdtsc() - begin;
	}
	return median(&cost);
}

/* A page fault in memory that is not guarded. */
static double plain_faults(void)
{
	char *memory = mmap(NULL, ROUNDS * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct cost cost;
	int slice, i;

	EXPECT(memory != MAP_FAILED);
	EXPECT_EQ(madvise(memory, ROUNDS * PAGE, MADV_NOHUGEPAGE), 0);
	settle();
	for (i = slice = 0; slice < SLICES; slice++) {
		uint64_t begin = __rdtsc();

		for (; i < ROUNDS / SLICES * (slice + 1); i++)
			put(memory + i * PAGE, 1);
		cost.slice[slice] = __rdtsc() - begin;
	}
	munmap(memory, ROUNDS * PAGE);
	return median(&cost);
}

/* The first, so that no program has been here with a handler. */
TEST(a_page_fault_of_others)
{
	struct space *space = space_make(1);
	double without = plain_faults(), with;

	EXPECT_EQ(handler(space, lean, 0), 0);
	with = plain_faults();
	say("others_fault", without);
	say("others_fault_while_traced", with);
	say("others_fault_percent", 100 * (with - without) / without);
}

static char *plain, *plain_alias;

static void segv(int number, siginfo_t *info, void *context)
{
	ucontext_t *at = context;

	(void)number;
	faults++;
	plain_alias[(char *)info->si_addr - plain] = (char)at->uc_mcontext.gregs[REG_RSI];
	at->uc_mcontext.gregs[REG_RIP] += 3;
}

static double upcalls(bool read_first, bool read_always)
{
	struct space *space = space_make(2);
	double cost;

	lean_distance = space->alias - space->guarded;
	space->guarded[PAGE] = 1;
	EXPECT_EQ(handler(space, lean, 0), 0);
	EXPECT_EQ(set(space, space->guarded, PAGE, ULPF_RO), 0);
	if (read_first)
		get(space->guarded);
	faults = 0;
	cost = read_always ? loads_and_stores(space->guarded) : stores(space->guarded);
	EXPECT_EQ(faults, ROUNDS + (read_always ? 0 : 1000));
	EXPECT_EQ(space->alias[(ROUNDS - 1) % 4096], (char)(ROUNDS - 1));
	return cost;
}

TEST(a_store_by_upcall_and_by_signal)
{
	struct sigaction action = { .sa_sigaction = segv, .sa_flags = SA_SIGINFO };
	int memory = memfd_create("memory", 0);
	double absent, read_once, read_always, late[3], signals;

	absent = upcalls(false, false);
	read_once = upcalls(true, false);
	read_always = upcalls(true, true);
	EXPECT(file_set("/sys/module/ulpf/parameters/early", "0"));
	late[0] = upcalls(false, false);
	late[1] = upcalls(true, false);
	late[2] = upcalls(true, true);
	EXPECT(file_set("/sys/module/ulpf/parameters/early", "1"));
	EXPECT_EQ(ftruncate(memory, PAGE), 0);
	plain = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, memory, 0);
	plain_alias = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
	sigaction(SIGSEGV, &action, NULL);
	faults = 0;
	signals = stores(plain);
	EXPECT_EQ(faults, ROUNDS + 1000);
	say("upcall_never_read", absent);
	say("upcall_read_once", read_once);
	say("upcall_and_load_each_time", read_always);
	say("signal", signals);
	say("upcall_percent_never_read", 100 * absent / signals);
	say("upcall_percent_read_once", 100 * read_once / signals);
	say("upcall_percent_load_each_time", 100 * read_always / signals);
	say("late_upcall_never_read", late[0]);
	say("late_upcall_read_once", late[1]);
	say("late_upcall_and_load_each_time", late[2]);
	say("late_upcall_percent_never_read", 100 * late[0] / signals);
	say("late_upcall_percent_load_each_time", 100 * late[2] / signals);
}

/* Each page is written first, so that to forbid stores has something to take away. */
static void touch_all(struct space *space)
{
	size_t i;

	for (i = 0; i < CHANGES; i++)
		put(space->guarded + i * PAGE, 1);
}

TEST(ten_thousand_changes_one_by_one_and_in_a_batch)
{
	struct space *space = space_make(CHANGES);
	static struct ulpf_op ops[CHANGES];
	struct ulpf_batch batch = { .size = sizeof(batch), .ops = (uintptr_t)ops, .count = CHANGES, .op_size = sizeof(*ops) };
	/* To what, from what, and whether the pages are written in between. */
	static const struct {
		const char *name;
		unsigned int to, from;
		bool written;
	} kinds[] = {
		{ "forbid_written", ULPF_RO, ULPF_RW, true },
		{ "permit", ULPF_RW, ULPF_RO, false },
		{ "forbid_untouched", ULPF_RO, ULPF_RW, false },
		{ "close_written", ULPF_NONE, ULPF_RW, true },
		{ "open", ULPF_RW, ULPF_NONE, false },
	};
	double single, many;
	char name[64];
	size_t kind;
	int i;

	for (kind = 0; kind < sizeof(kinds) / sizeof(*kinds); kind++) {
		uint64_t begin;

		for (i = 0; i < CHANGES; i++)
			ops[i] = (struct ulpf_op){ ULPF_OP_SET, 0, (uintptr_t)space->guarded + i * PAGE, PAGE, kinds[kind].to };
		EXPECT_EQ(set(space, space->guarded, space->size, kinds[kind].from), 0);
		if (kinds[kind].written)
			touch_all(space);
		settle();
		begin = __rdtsc();
		for (i = 0; i < CHANGES; i++)
			EXPECT_EQ(ioctl(space->fd, ULPF_APPLY, &ops[i]), 0);
		single = (double)(__rdtsc() - begin) / CHANGES;
		EXPECT_EQ(set(space, space->guarded, space->size, kinds[kind].from), 0);
		if (kinds[kind].written)
			touch_all(space);
		settle();
		begin = __rdtsc();
		EXPECT_EQ(ioctl(space->fd, ULPF_BATCH, &batch), 0);
		many = (double)(__rdtsc() - begin) / CHANGES;
		snprintf(name, sizeof(name), "%s_one_by_one", kinds[kind].name);
		say(name, single);
		snprintf(name, sizeof(name), "%s_batch", kinds[kind].name);
		say(name, many);
		snprintf(name, sizeof(name), "%s_times", kinds[kind].name);
		say(name, single / many);
	}
}

static volatile bool finished;
static volatile unsigned long read_events;

static void *reader(void *arg)
{
	struct space *space = arg;
	static struct ulpf_event event[4096];
	ssize_t got;

	while (!finished && (got = read(space->fd, event, sizeof(event))) > 0)
		read_events += got / sizeof(*event);
	return NULL;
}

/* A program that makes system calls into guarded memory, each an event; with and without a reader. */
static uint64_t events_made(struct space *space, int file)
{
	uint64_t begin = __rdtsc();
	int i;

	for (i = 0; i < EVENTS; i++)
		EXPECT_EQ(pread(file, space->guarded, 64, 0), 64);
	return __rdtsc() - begin;
}

TEST(reading_the_ring)
{
	struct space *space = space_make(1);
	int file = memfd_create("file", 0);
	double without, with, bare;
	pthread_t thread;

	EXPECT_EQ(ftruncate(file, PAGE), 0);
	settle();
	bare = (double)events_made(space, file) / EVENTS;
	EXPECT_EQ(set(space, space->guarded, PAGE, ULPF_RO), 0);
	EXPECT_EQ(ring(space, 8192, 2048, 100000), 0);
	events_made(space, file);
	without = (double)events_made(space, file) / EVENTS;
	EXPECT_EQ(pthread_create(&thread, NULL, reader, space), 0);
	events_made(space, file);
	read_events = 0;
	with = (double)events_made(space, file) / EVENTS;
	EXPECT(read_events > EVENTS * 8 / 10);
	finished = true;
	say("call_not_guarded", bare);
	say("call_with_event", without);
	say("call_with_event_and_reader", with);
	say("reader_percent", 100 * (with - without) / without);
}
