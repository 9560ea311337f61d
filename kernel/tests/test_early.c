// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Upcalls before the page table is looked at: when that is so, and that nothing depends on it. */
#include "test.h"

#include <sys/mount.h>
#include <sys/resource.h>

#define TRACING	"/sys/kernel/tracing/"
#define EARLY	"/sys/module/ulpf/parameters/early"
#define ENABLED	"/proc/sys/kernel/ftrace_enabled"

static void need_early(void)
{
	if (access(EARLY, F_OK))
		SKIP("this kernel cannot trace functions");
	EXPECT(!mount("tracing", TRACING, "tracefs", 0, NULL) || errno == EBUSY);
}

/* Whether handle_mm_fault() is traced by a function that may change where execution continues. */
static bool is_traced(void)
{
	FILE *file = fopen(TRACING "enabled_functions", "r");
	char line[512];
	bool found = false;

	EXPECT(file);
	while (fgets(line, sizeof(line), file))
		if (!strncmp(line, "handle_mm_fault ", 16))
			found = strstr(line, " I") != NULL;
	fclose(file);
	return found;
}

enum { STORES = 1000 };

/* That many upcalls; whether the kernel has counted them as page faults, as it does behind handle_mm_fault(). */
static bool counted_as_faults(struct space *space)
{
	struct rusage before, after;
	unsigned long begin = faults;
	long counted;
	int i;

	put(space->guarded, 0);		/* the handler's own pages are there */
	getrusage(RUSAGE_SELF, &before);
	for (i = 0; i < STORES; i++)
		put(space->guarded + i, i);
	getrusage(RUSAGE_SELF, &after);
	EXPECT_EQ(faults - begin, STORES + 1);
	for (i = 0; i < STORES; i++)
		EXPECT_EQ(space->alias[i], (char)i);
	counted = after.ru_minflt - before.ru_minflt;
	EXPECT(counted < STORES / 10 || counted >= STORES);
	return counted >= STORES;
}

TEST(upcalls_leave_out_the_page_table)
{
	struct space *space;

	need_early();
	space = space_closed(2);
	EXPECT(is_traced());
	EXPECT(!counted_as_faults(space));
	/* A page that may be read, too. */
	get(space->guarded);
	EXPECT(!counted_as_faults(space));
	EXPECT(file_set(EARLY, "N"));
	EXPECT(counted_as_faults(space));
	EXPECT(file_set(EARLY, "Y"));
	EXPECT(!counted_as_faults(space));
}

TEST(without_function_tracing_they_come_all_the_same)
{
	struct space *space;

	need_early();
	space = space_closed(2);
	EXPECT(file_set(ENABLED, "0"));
	EXPECT(counted_as_faults(space));
	/* Another space gets a handler meanwhile. */
	EXPECT(counted_as_faults(space_closed(2)));
	EXPECT(file_set(ENABLED, "1"));
	the_space = space;
	EXPECT(!counted_as_faults(space));
}

/* The administrator traces the same function. */
TEST(with_another_tracer)
{
	struct space *space;

	need_early();
	space = space_closed(2);
	if (access(TRACING "set_ftrace_filter", F_OK) || !file_set(TRACING "set_ftrace_filter", "handle_mm_fault"))
		SKIP("no function tracer");
	EXPECT(file_set(TRACING "current_tracer", "function"));
	EXPECT(!counted_as_faults(space));
	EXPECT(file_set(TRACING "current_tracer", "nop"));
	EXPECT(file_set(TRACING "set_ftrace_filter", ""));
	EXPECT(!counted_as_faults(space));
}

static volatile bool finished;
static unsigned long stored[2];

static void *storing(void *arg)
{
	char *to = arg;
	unsigned long *count = &stored[(int)*to];
	int i;

	for (i = 0; !finished; i = (i + 1) % 1000, ++*count) {
		get(to + PAGE);
		put(to + PAGE + i, 1);
	}
	return NULL;
}

static unsigned long seen[2];

static void store_and_count(struct ulpf_frame *frame)
{
	/* Each thread has a page of its own. */
	seen[(frame->addr - (uintptr_t)the_space->guarded) / PAGE / 2]++;
	store_byte(frame);
}

/* Whatever way an access comes: no store is lost, none is seen twice. */
TEST(switched_while_threads_store)
{
	struct space *space;
	pthread_t thread[2];
	int i;

	need_early();
	space = space_closed(4);
	EXPECT_EQ(set(space, space->guarded, space->size, ULPF_RW), 0);
	for (i = 0; i < 2; i++) {
		space->guarded[2 * i * PAGE] = i;
		EXPECT_EQ(set(space, space->guarded + (2 * i + 1) * PAGE, PAGE, ULPF_RO), 0);
	}
	on_fault = store_and_count;
	for (i = 0; i < 2; i++)
		EXPECT_EQ(pthread_create(&thread[i], NULL, storing, space->guarded + 2 * i * PAGE), 0);
	for (i = 0; i < 20; i++) {
		EXPECT(file_set(ENABLED, i % 2 ? "1" : "0"));
		EXPECT(file_set(EARLY, i % 3 ? "Y" : "N"));
		usleep(2000);
	}
	EXPECT(file_set(ENABLED, "1"));
	EXPECT(file_set(EARLY, "Y"));
	finished = true;
	for (i = 0; i < 2; i++) {
		pthread_join(thread[i], NULL);
		EXPECT(stored[i] > 0);
		EXPECT_EQ(seen[i], stored[i]);
	}
}

/* All processes pay for it. So opening the device must not enable it, but root can at any time. */
TEST(root_decides)
{
	struct space *space;

	need_early();
	EXPECT(file_set(EARLY, "N"));
	EXPECT(!is_traced());
	space = space_closed(2);
	EXPECT(!is_traced());
	EXPECT(counted_as_faults(space));
	/* For programs that have a handler already, too. */
	EXPECT(file_set(EARLY, "Y"));
	EXPECT(is_traced());
	EXPECT(!counted_as_faults(space));
	EXPECT(file_set(EARLY, "N"));
	EXPECT(!is_traced());
	EXPECT(counted_as_faults(space));
	EXPECT(!file_set(EARLY, "perhaps"));
	EXPECT_EQ(setresuid(1000, 1000, 1000), 0);
	EXPECT(!file_set(EARLY, "Y"));
	put(space_closed(1)->guarded, 1);
	EXPECT(counted_as_faults(space_closed(2)));
}

static void one_handler(void)
{
	struct space *space = space_closed(1);

	put(space->guarded, 1);
}

/* The trace ends soon after the last handler has gone. */
TEST(it_goes_when_nobody_needs_it)
{
	int tries;

	need_early();
	EXPECT(file_set(EARLY, "Y"));
	EXPECT_EQ(in_child(one_handler), 0);
	for (tries = 0; tries < 500 && is_traced(); tries++)
		usleep(100000);
	EXPECT(!is_traced());
	EXPECT(!counted_as_faults(space_closed(2)));
	EXPECT(is_traced());
}
