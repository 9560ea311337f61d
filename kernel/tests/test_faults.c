// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Forbidden accesses come to the handler, permitted ones do not. */
#include "test.h"

#include <ucontext.h>

TEST(memory_is_zero_and_shared_with_the_alias)
{
	struct space *space = space_make(4);
	size_t i;

	for (i = 0; i < space->size; i++)
		EXPECT_EQ(space->guarded[i], 0);
	space->guarded[5000] = 7;
	EXPECT_EQ(space->alias[5000], 7);
	space->alias[100] = 9;
	EXPECT_EQ(space->guarded[100], 9);
}

TEST(store_comes_to_the_handler)
{
	struct space *space = space_make(4);
	int i;

	EXPECT_EQ(handler(space, entry, 0), 0);
	EXPECT_EQ(set(space, space->guarded, PAGE, ULPF_RO), 0);
	on_fault = store_byte;
	for (i = 0; i < 100; i++)
		put(space->guarded + i, i);
	EXPECT_EQ(faults, 100);
	for (i = 0; i < 100; i++)
		EXPECT_EQ(space->guarded[i], i);
	EXPECT_EQ(faults, 100);
	/* Now that the page is mapped for reading, stores go another way in the kernel. */
	for (i = 0; i < 100; i++)
		put(space->guarded + i, i + 1);
	EXPECT_EQ(faults, 200);
	EXPECT_EQ(space->alias[99], 100);
	EXPECT_EQ(counts(space).upcalls, 200);
	/* The next page is open. */
	put(space->guarded + PAGE, 1);
	EXPECT_EQ(faults, 200);
}

TEST(load_comes_to_the_handler)
{
	struct space *space = space_make(2);

	EXPECT_EQ(handler(space, entry, 0), 0);
	space->guarded[3] = 42;
	EXPECT_EQ(set(space, space->guarded, PAGE, ULPF_NONE), 0);
	on_fault = load_byte;
	EXPECT_EQ(get(space->guarded + 3), 42);
	EXPECT_EQ(get(space->guarded + 3), 42);
	EXPECT_EQ(faults, 2);
	EXPECT_EQ(last_frame.info, ULPF_NONE << ULPF_INFO_PERM_SHIFT);
}

TEST(frame_says_what_happened)
{
	struct space *space = space_make(2);
	uint64_t sp;

	EXPECT_EQ(handler(space, entry, 0), 0);
	EXPECT_EQ(set(space, space->guarded, PAGE, ULPF_RO), 0);
	on_fault = store_byte;
	asm volatile("mov %%rsp, %0" : "=r"(sp));
	put(space->guarded + 1234, 1);
	EXPECT_EQ(last_frame.addr, (uintptr_t)space->guarded + 1234);
	EXPECT_EQ(last_frame.info, ULPF_INFO_WRITE | ULPF_RO << ULPF_INFO_PERM_SHIFT);
	EXPECT_EQ(last_frame.cookie, (uintptr_t)space);
	EXPECT_EQ(last_frame.ip, (uintptr_t)put);
	EXPECT_EQ(last_frame.sp & ~0xfffUL, sp & ~0xfffUL);
	EXPECT_EQ(last_frame.cs, 0x33);
	EXPECT_EQ(last_frame.ss, 0x2b);
}

/* All registers are as they were, but flags that a handler must not inherit. */
TEST(handler_finds_and_leaves_registers)
{
	struct space *space = space_make(2);
	uint64_t before[4] = { 0x1111, 0x2222, 0x3333, 0x4444 }, after[4], flags;

	EXPECT_EQ(handler(space, entry, 0), 0);
	EXPECT_EQ(set(space, space->guarded, PAGE, ULPF_RO), 0);
	on_fault = open_page;
	asm volatile("mov (%2), %%r12; mov 8(%2), %%r8; mov 16(%2), %%r9; mov 24(%2), %%r10\n"
		     "movq $77, -8(%%rsp); movq $78, -128(%%rsp); std; stc\n"
		     "movq $5, (%3)\n"
		     "pushfq; popq %0; cld\n"
		     "mov %%r12, (%1); mov %%r8, 8(%1); mov %%r9, 16(%1); mov %%r10, 24(%1)\n"
		     : "=&r"(flags) : "r"(after), "r"(before), "r"(space->guarded)
		     : "r8", "r9", "r10", "r12", "memory", "cc");
	EXPECT_EQ(memcmp(before, after, sizeof(before)), 0);
	EXPECT(flags & 0x400 && flags & 1);
	EXPECT(last_frame.flags & 0x400);
	EXPECT_EQ(*(uint64_t *)space->guarded, 5);
	EXPECT_EQ(faults, 1);
}

static volatile uint64_t red_zone;

TEST(red_zone_stays)
{
	struct space *space = space_make(2);

	EXPECT_EQ(handler(space, entry, 0), 0);
	EXPECT_EQ(set(space, space->guarded, PAGE, ULPF_RO), 0);
	on_fault = open_page;
	asm volatile("movq $77, -128(%%rsp); movb $1, (%1); mov -128(%%rsp), %0"
		     : "=r"(red_zone) : "r"(space->guarded) : "memory");
	EXPECT_EQ(red_zone, 77);
	EXPECT_EQ(faults, 1);
}

TEST(read_modify_write_is_a_store)
{
	struct space *space = space_make(2);

	EXPECT_EQ(handler(space, entry, 0), 0);
	EXPECT_EQ(set(space, space->guarded, PAGE, ULPF_RO), 0);
	on_fault = open_page;
	__atomic_fetch_add((int *)space->guarded, 3, __ATOMIC_SEQ_CST);
	EXPECT_EQ(faults, 1);
	EXPECT(last_frame.info & ULPF_INFO_WRITE);
	EXPECT_EQ(*(int *)space->alias, 3);
}

TEST(wide_store_across_two_pages)
{
	struct space *space = space_make(2);

	EXPECT_EQ(handler(space, entry, 0), 0);
	EXPECT_EQ(set(space, space->guarded, 2 * PAGE, ULPF_RO), 0);
	on_fault = open_page;
	*(volatile uint64_t *)(space->guarded + PAGE - 4) = ~0UL;
	EXPECT_EQ(faults, 2);
	EXPECT_EQ(*(uint64_t *)(space->alias + PAGE - 4), ~0UL);
}

static void in_handler(struct ulpf_frame *frame)
{
	/* One page deeper each time. */
	if (frame->addr < (uintptr_t)the_space->guarded + 15 * PAGE)
		put((char *)frame->addr + PAGE, 1);
	open_page(frame);
}

TEST(faults_in_the_handler_nest)
{
	struct space *space = space_make(16);

	EXPECT_EQ(handler(space, entry, 0), 0);
	EXPECT_EQ(set(space, space->guarded, space->size, ULPF_RO), 0);
	on_fault = in_handler;
	put(space->guarded, 1);
	EXPECT_EQ(faults, 16);
	EXPECT_EQ(space->alias[15 * PAGE], 1);
}

/* A new stack page that is not there yet, at each of many depths. */
static void recurse(struct space *space, int depth)
{
	volatile char buffer[2048];

	buffer[0] = depth;
	put(space->guarded, depth);
	if (depth)
		recurse(space, depth - 1);
	buffer[1] = buffer[0];
}

TEST(stack_grows_for_the_frame)
{
	struct space *space = space_make(1);

	EXPECT_EQ(handler(space, entry, 0), 0);
	EXPECT_EQ(set(space, space->guarded, PAGE, ULPF_RO), 0);
	on_fault = store_byte;
	recurse(space, 500);
	EXPECT_EQ(faults, 501);
	EXPECT_EQ(space->guarded[0], 0);
}

TEST(frame_on_a_page_that_is_not_there)
{
	struct space *space = space_make(1);
	char *stack = mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int i;

	EXPECT_EQ(handler(space, entry, 0), 0);
	EXPECT_EQ(set(space, space->guarded, PAGE, ULPF_RO), 0);
	on_fault = store_byte;
	for (i = 0; i < 16; i++) {
		/* Nothing of this stack has been touched but by the frame. */
		madvise(stack, 64 * PAGE, MADV_DONTNEED);
		asm volatile("mov %%rsp, %%r12; mov %0, %%rsp; call put; mov %%r12, %%rsp"
			     : : "r"(stack + 32 * PAGE), "D"(space->guarded), "S"(i)
			     : "r12", "memory", "cc", "rax", "rcx", "rdx");
		EXPECT_EQ(space->alias[0], i);
	}
	EXPECT_EQ(faults, 16);
}

TEST(without_a_handler_it_is_a_signal)
{
	struct space *space = space_make(1);
	struct ulpf_event event[4];

	EXPECT_EQ(ring(space, 64, 1, 0), 0);
	EXPECT_EQ(set(space, space->guarded, PAGE, ULPF_RO), 0);
	if (!fork()) {
		_exit(0);
	}
	wait(NULL);
	{
		/* In this process, with a signal handler that opens the page. */
		extern void segv(int, siginfo_t *, void *);
		struct sigaction action = { .sa_sigaction = segv, .sa_flags = SA_SIGINFO };

		sigaction(SIGSEGV, &action, NULL);
		put(space->guarded + 5, 1);
	}
	EXPECT_EQ(faults, 1000);
	EXPECT_EQ(space->alias[5], 1);
	EXPECT_EQ(counts(space).unhandled, 1);
	EXPECT_EQ(events(space, event, 4), 1);
	EXPECT_EQ(event[0].type, ULPF_EVENT_UNHANDLED);
	EXPECT_EQ(event[0].addr, (uintptr_t)space->guarded + 5);
	EXPECT_EQ(event[0].ip, (uintptr_t)put);
	EXPECT_EQ(event[0].tid, gettid());
}

void segv(int number, siginfo_t *info, void *context)
{
	(void)number;
	(void)context;
	faults = 1000;
	set(the_space, (void *)((uintptr_t)info->si_addr & ~(PAGE - 1)), PAGE, ULPF_RW);
}

TEST(own_protection_is_the_programs)
{
	struct space *space = space_make(1);
	extern void segv(int, siginfo_t *, void *);

	EXPECT_EQ(handler(space, entry, 0), 0);
	EXPECT_EQ(mprotect(space->guarded, PAGE, PROT_READ), 0);
	EXPECT_EQ(set(space, space->guarded, PAGE, ULPF_RO), 0);
	on_fault = store_byte;
	{
		int status;
		pid_t pid = fork();

		if (!pid) {
			put(space->guarded, 1);
			_exit(0);
		}
		waitpid(pid, &status, 0);
		EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	}
	/* And back: our permission holds as before, also for pages that were dirty. */
	EXPECT_EQ(mprotect(space->guarded, PAGE, PROT_READ | PROT_WRITE), 0);
	EXPECT_EQ(get(space->guarded), 0);
	put(space->guarded, 1);
	EXPECT_EQ(faults, 1);
}

TEST(permissions_come_and_go)
{
	struct space *space = space_make(4);
	int round;

	EXPECT_EQ(handler(space, entry, 0), 0);
	on_fault = store_byte;
	for (round = 0; round < 50; round++) {
		put(space->guarded + PAGE, round);		/* mapped writable */
		EXPECT_EQ(faults, round);
		EXPECT_EQ(set(space, space->guarded + PAGE, PAGE, ULPF_RO), 0);
		EXPECT_EQ(lookup(space, space->guarded + PAGE + 5).permission, ULPF_RO);
		put(space->guarded + PAGE, round);
		EXPECT_EQ(faults, round + 1);
		EXPECT_EQ(set(space, space->guarded + PAGE, PAGE, ULPF_RW), 0);
	}
}

TEST(munmap_forgets)
{
	struct space *space = space_make(8);

	EXPECT_EQ(set(space, space->guarded, space->size, ULPF_NONE), 0);
	EXPECT_EQ(munmap(space->guarded + PAGE, 2 * PAGE), 0);
	EXPECT_EQ(lookup(space, space->guarded).permission, ULPF_NONE);
	EXPECT_EQ(lookup(space, space->guarded + PAGE).permission, ULPF_RW);
	EXPECT_EQ(lookup(space, space->guarded + PAGE).state, 0);
	EXPECT_EQ(lookup(space, space->guarded + 3 * PAGE).permission, ULPF_NONE);
	EXPECT(mmap(space->guarded + PAGE, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, space->fd,
		    ULPF_MAP_GUARD + PAGE) != MAP_FAILED);
	EXPECT_EQ(lookup(space, space->guarded + PAGE).state, ULPF_PAGE_GUARDED);
	put(space->guarded + PAGE, 1);
	EXPECT_ERRNO(mremap(space->guarded, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, space->guarded + 100 * PAGE), EINVAL);
}

TEST(store_offsets_may_be_addresses)
{
	int fd = device();
	uint64_t where = 0x7f1234567000;
	char *one = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, ULPF_MAP_GUARD + where);
	char *two = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, ULPF_MAP_ALIAS + where);

	EXPECT(one != MAP_FAILED && two != MAP_FAILED);
	one[1] = 5;
	EXPECT_EQ(two[1], 5);
	EXPECT_EQ(madvise(two, PAGE, MADV_REMOVE), 0);
	EXPECT_EQ(one[1], 0);
}

/* Two threads: one stores, one closes the page; after the close nothing passes. */
static volatile bool stop;
static volatile unsigned long stored;

static void *storing(void *arg)
{
	struct space *space = arg;

	while (!stop) {
		__atomic_fetch_add((unsigned long *)space->guarded, 1, __ATOMIC_RELAXED);
		stored++;
	}
	return NULL;
}

static void hold(struct ulpf_frame *frame)
{
	/* Until the main thread opens it. */
	(void)frame;
}

TEST(nothing_passes_a_closed_page)
{
	struct space *space = space_make(1);
	pthread_t thread;
	int round;

	EXPECT_EQ(handler(space, entry, 0), 0);
	on_fault = hold;
	EXPECT_EQ(pthread_create(&thread, NULL, storing, space), 0);
	for (round = 0; round < 200; round++) {
		unsigned long before, now;

		usleep(100);
		EXPECT_EQ(set(space, space->guarded, PAGE, ULPF_RO), 0);
		before = *(volatile unsigned long *)space->alias;
		usleep(200);
		now = *(volatile unsigned long *)space->alias;
		EXPECT_EQ(before, now);
		EXPECT_EQ(set(space, space->guarded, PAGE, ULPF_RW), 0);
	}
	stop = true;
	pthread_join(thread, NULL);
	EXPECT_EQ(stored, *(unsigned long *)space->alias);
}

TEST(two_spaces_in_one_process)
{
	struct space *one = space_make(1), *two = space_make(1);

	EXPECT_EQ(handler(one, entry, 0), 0);
	EXPECT_EQ(handler(two, entry, 0), 0);
	EXPECT_EQ(set(one, one->guarded, PAGE, ULPF_RO), 0);
	EXPECT_ERRNO(set(one, two->guarded, PAGE, ULPF_RO), ENOMEM);
	the_space = one;
	on_fault = store_byte;
	put(one->guarded, 1);
	put(two->guarded, 2);
	EXPECT_EQ(faults, 1);
	EXPECT_EQ(last_frame.cookie, (uintptr_t)one);
	EXPECT_EQ(one->alias[0], 1);
	EXPECT_EQ(two->alias[0], 2);
}

TEST(code_that_may_not_be_fetched)
{
	struct space *space = space_make(1);
	char *code;

	EXPECT_EQ(handler(space, entry, 0), 0);
	code = mmap(NULL, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_SHARED, space->fd, ULPF_MAP_GUARD);
	if (code == MAP_FAILED)
		SKIP("no executable mappings of the device here");
	space->alias[0] = (char)0xc3;
	EXPECT_EQ(set(space, code, PAGE, ULPF_NONE), 0);
	on_fault = open_page;
	((test_fn *)code)();
	EXPECT_EQ(faults, 1);
	EXPECT_EQ(last_frame.info & 0xff, ULPF_INFO_FETCH);
	EXPECT_EQ(last_frame.ip, (uintptr_t)code);
}

/* The frame lies where a signal's would, and a thread without such a stack gets the signal. */
static char signal_stack[4 * PAGE] __attribute__((aligned(16)));
static char *frame_at;

static void note_stack(struct ulpf_frame *frame)
{
	frame_at = (char *)frame;
	store_byte(frame);
}

static void *without_signal_stack(void *to)
{
	put(to, 1);
	return NULL;
}

static void another_thread(void)
{
	struct space *space = space_make(1);
	pthread_t thread;

	EXPECT_EQ(handler(space, entry, ULPF_HANDLER_SIGSTACK), 0);
	EXPECT_EQ(set(space, space->guarded, PAGE, ULPF_RO), 0);
	pthread_create(&thread, NULL, without_signal_stack, the_space->guarded);
	pthread_join(thread, NULL);
	_exit(0);
}

TEST(frame_on_the_signal_stack)
{
	struct space *space = space_make(2);
	stack_t stack = { .ss_sp = signal_stack, .ss_size = sizeof(signal_stack) };

	EXPECT_EQ(handler(space, entry, ULPF_HANDLER_SIGSTACK), 0);
	EXPECT_EQ(set(space, space->guarded, PAGE, ULPF_RO), 0);
	EXPECT_EQ(sigaltstack(&stack, NULL), 0);
	on_fault = note_stack;
	put(space->guarded, 3);
	EXPECT_EQ(space->alias[0], 3);
	EXPECT_EQ(frame_at + sizeof(struct ulpf_frame) - signal_stack, sizeof(signal_stack));
	EXPECT(last_frame.info & ULPF_INFO_STACK);
	/* A page that has been read comes by another way. */
	EXPECT_EQ(get(space->guarded), 3);
	put(space->guarded, 4);
	EXPECT_EQ(space->alias[0], 4);
	EXPECT_EQ(faults, 2);
	EXPECT_SIGNAL(another_thread, SIGSEGV);
}
