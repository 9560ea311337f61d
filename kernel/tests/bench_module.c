// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * What the module costs. Meant for one processor and -icount shift=0: then the time stamp
 * counter counts instructions, and figures repeat. Prints "bench NAME VALUE".
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
static uint64_t stores(char *to)
{
	uint64_t begin;
	int i;

	for (i = 0; i < 1000; i++)
		put(to + i, i);
	begin = __rdtsc();
	for (i = 0; i < ROUNDS; i++)
		put(to + i % 4096, i);
	return __rdtsc() - begin;
}

/* ... and a load from the same page before each store. */
static uint64_t loads_and_stores(char *to)
{
	uint64_t begin = __rdtsc();
	int i;

	for (i = 0; i < ROUNDS; i++) {
		get(to + i % 4096);
		put(to + i % 4096, i);
	}
	return __rdtsc() - begin;
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

static uint64_t upcalls(bool read_first, bool read_always)
{
	struct space *space = space_make(2);
	uint64_t cost;

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
	double absent, read_once, read_always, signals;

	absent = (double)upcalls(false, false) / ROUNDS;
	read_once = (double)upcalls(true, false) / ROUNDS;
	read_always = (double)upcalls(true, true) / ROUNDS;
	EXPECT_EQ(ftruncate(memory, PAGE), 0);
	plain = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, memory, 0);
	plain_alias = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
	sigaction(SIGSEGV, &action, NULL);
	faults = 0;
	signals = (double)stores(plain) / ROUNDS;
	EXPECT_EQ(faults, ROUNDS + 1000);
	say("upcall_never_read", absent);
	say("upcall_read_once", read_once);
	say("upcall_and_load_each_time", read_always);
	say("signal", signals);
	say("upcall_percent_never_read", 100 * absent / signals);
	say("upcall_percent_read_once", 100 * read_once / signals);
	say("upcall_percent_load_each_time", 100 * read_always / signals);
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
	double single[3], many[3];
	int i, kind;

	for (kind = 0; kind < 3; kind++) {
		/* 0: forbid stores to pages that have been written; 1: permit them; 2: forbid, untouched since. */
		unsigned int permission = kind == 1 ? ULPF_RW : ULPF_RO;
		uint64_t begin;

		for (i = 0; i < CHANGES; i++)
			ops[i] = (struct ulpf_op){ ULPF_OP_SET, 0, (uintptr_t)space->guarded + i * PAGE, PAGE, permission };
		EXPECT_EQ(set(space, space->guarded, space->size, kind == 1 ? ULPF_RO : ULPF_RW), 0);
		if (!kind)
			touch_all(space);
		begin = __rdtsc();
		for (i = 0; i < CHANGES; i++)
			EXPECT_EQ(ioctl(space->fd, ULPF_APPLY, &ops[i]), 0);
		single[kind] = (double)(__rdtsc() - begin) / CHANGES;
		EXPECT_EQ(set(space, space->guarded, space->size, kind == 1 ? ULPF_RO : ULPF_RW), 0);
		if (!kind)
			touch_all(space);
		begin = __rdtsc();
		EXPECT_EQ(ioctl(space->fd, ULPF_BATCH, &batch), 0);
		many[kind] = (double)(__rdtsc() - begin) / CHANGES;
	}
	say("forbid_written_one_by_one", single[0]);
	say("forbid_written_batch", many[0]);
	say("forbid_written_times", single[0] / many[0]);
	say("permit_one_by_one", single[1]);
	say("permit_batch", many[1]);
	say("permit_times", single[1] / many[1]);
	say("forbid_untouched_one_by_one", single[2]);
	say("forbid_untouched_batch", many[2]);
	say("forbid_untouched_times", single[2] / many[2]);
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

/* A program that makes system calls into guarded memory, each an event; with and without somebody who reads. */
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
