// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Fork, exec, threads, signals, kill, limits: how a space lives and ends. */
#include "test.h"

#include <sched.h>
#include <setjmp.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

TEST(forked_child_is_not_guarded)
{
	struct space *space = space_closed(2);
	int status;
	pid_t pid = fork();

	if (!pid) {
		put(space->guarded, 5);
		if (faults)
			_exit(1);
		if (set(space, space->guarded, PAGE, ULPF_RW) != -1 || errno != EPERM)
			_exit(2);
		if (mmap(NULL, PAGE, PROT_READ, MAP_SHARED, space->fd, ULPF_MAP_GUARD) != MAP_FAILED || errno != EPERM)
			_exit(3);
		if (handler(space, entry, ULPF_HANDLER_REPLACE) != -1 || errno != EPERM)
			_exit(4);
		/* It may have a space of its own. */
		space = space_closed(2);
		put(space->guarded, 6);
		_exit(faults == 1 ? 0 : 5);
	}
	EXPECT_EQ(waitpid(pid, &status, 0), pid);
	EXPECT_EQ(status, 0);
	EXPECT_EQ(space->alias[0], 5);		/* memory is shared, as the interface says */
	put(space->guarded, 1);
	EXPECT_EQ(faults, 1);			/* and the parent guarded as before */
}

TEST(child_outlives_its_parent)
{
	struct space *space = space_closed(2);
	int ends[2];
	char byte;

	EXPECT_EQ(pipe(ends), 0);
	if (!fork()) {
		if (!fork()) {
			/* Its mapping is all that is left of the space when the middle one is gone. */
			usleep(100000);
			put(space->guarded + 9, 9);
			byte = space->alias[9];
			_exit(write(ends[1], &byte, 1) != 1);
		}
		close(space->fd);
		_exit(0);
	}
	EXPECT_EQ(read(ends[0], &byte, 1), 1);
	EXPECT_EQ(byte, 9);
}

static char child_stack[65536] __attribute__((aligned(16)));

static int in_vfork(void *arg)
{
	struct space *space = arg;

	put(space->guarded, 3);
	return 0;
}

TEST(shared_memory_shares_the_guard)
{
	struct space *space = space_closed(2);
	int status;
	pid_t pid = clone(in_vfork, child_stack + sizeof(child_stack), CLONE_VM | CLONE_VFORK | SIGCHLD, space);

	EXPECT_EQ(waitpid(pid, &status, 0), pid);
	EXPECT_EQ(status, 0);
	EXPECT_EQ(faults, 1);
	EXPECT_EQ(space->alias[0], 3);
}

/*
 * The new program has no handler, no guarded memory and no rights. The holder of the ring learns of the
 * end.
 */
TEST(exec_leaves_nothing)
{
	int go[2], status;
	pid_t owner, monitor;
	char byte;

	EXPECT_EQ(pipe(go), 0);
	owner = fork();
	if (!owner) {
		struct space *space = space_closed(2);

		EXPECT_EQ(ring(space, 64, 1, 0), 0);
		put(space->guarded, 1);
		monitor = fork();
		if (!monitor) {
			struct pollfd poll_fd = { .fd = space->fd, .events = POLLIN };
			struct ulpf_event event;
			bool well;

			munmap(space->guarded, space->size);
			well = poll(&poll_fd, 1, 30000) == 1 && poll_fd.revents & POLLHUP &&
			       read(space->fd, &event, sizeof(event)) == 0;
			_exit(write(go[1], well ? "y" : "n", 1) != 1);
		}
		/* Descriptor 9 goes along. */
		dup2(space->fd, 9);
		execv("/proc/self/exe", (char *const[]){ "test_life", "after_exec", NULL });
		_exit(127);
	}
	EXPECT_EQ(waitpid(owner, &status, 0), owner);
	EXPECT_EQ(status, 0);
	EXPECT_EQ(read(go[0], &byte, 1), 1);
	EXPECT_EQ(byte, 'y');
}

TEST(after_exec)
{
	struct space space = { .fd = 9 };

	/* By itself it has nothing to look at. */
	if (fcntl(9, F_GETFD) < 0)
		return;
	EXPECT_ERRNO(handler(&space, entry, 0), EPERM);
	EXPECT_ERRNO(set(&space, entry, PAGE, ULPF_RO), EPERM);
	EXPECT(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, 9, ULPF_MAP_GUARD) == MAP_FAILED && errno == EPERM);
	EXPECT_EQ(counts(&space).upcalls, 1);
}

/* A monitor in another process reads to the end, which comes when the owner is killed. */
TEST(monitor_reads_to_the_end)
{
	int pair[2], status;
	pid_t owner, monitor;
	struct space *space;

	EXPECT_EQ(pipe(pair), 0);
	owner = fork();
	if (!owner) {
		int file = memfd_create("file", 0), i;

		space = space_closed(1);
		EXPECT_EQ(ring(space, 64, 32, 0), 0);
		monitor = fork();
		if (!monitor) {
			struct ulpf_event event[64];
			ssize_t got, all = 0;

			munmap(space->guarded, space->size);
			munmap(space->alias, space->size);
			if (write(pair[1], "", 1) != 1)
				_exit(3);
			/* Fewer than the watermark: only the end wakes it. */
			while ((got = read(space->fd, event, sizeof(event))) > 0)
				all += got;
			_exit(write(pair[1], got == 0 && all == 3 * 64 ? "y" : "n", 1) != 1);
		}
		EXPECT_EQ(ftruncate(file, 1), 0);
		for (i = 0; i < 3; i++)
			EXPECT_EQ(pread(file, space->guarded, 1, 0), 1);
		pause();
	}
	{
		char byte;

		EXPECT_EQ(read(pair[0], &byte, 1), 1);
		usleep(300000);
		kill(owner, SIGKILL);
		EXPECT_EQ(waitpid(owner, &status, 0), owner);
		EXPECT_EQ(read(pair[0], &byte, 1), 1);
		EXPECT_EQ(byte, 'y');
	}
}

static void spin(struct ulpf_frame *frame)
{
	(void)frame;
	for (;;)
		;
}

TEST(killed_in_the_handler)
{
	int status, i;

	for (i = 0; i < 5; i++) {
		pid_t pid = fork();

		if (!pid) {
			struct space *space = space_closed(4);

			on_fault = spin;
			put(space->guarded, 1);
			_exit(0);
		}
		usleep(50000);
		kill(pid, SIGKILL);
		EXPECT_EQ(waitpid(pid, &status, 0), pid);
		EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	}
}

static volatile sig_atomic_t signals;

static void on_signal(int number)
{
	(void)number;
	signals++;
	put(the_space->guarded + PAGE, 1);	/* a fault in a signal handler */
}

static void slow(struct ulpf_frame *frame)
{
	raise(SIGUSR1);				/* a signal in the handler */
	store_byte(frame);
}

static void either(struct ulpf_frame *frame)
{
	(frame->addr < (uintptr_t)the_space->guarded + PAGE ? slow : store_byte)(frame);
}

TEST(signals_in_the_handler)
{
	struct space *space = space_closed(2);
	int i;

	signal(SIGUSR1, on_signal);
	on_fault = either;
	for (i = 0; i < 200; i++)
		put(space->guarded, i);
	EXPECT_EQ(signals, 200);
	EXPECT_EQ(faults, 400);
}

TEST(a_hail_of_signals)
{
	struct space *space = space_closed(2);
	struct itimerval often = { { 0, 500 }, { 0, 500 } };
	int i;

	signal(SIGALRM, on_signal);
	setitimer(ITIMER_REAL, &often, NULL);
	for (i = 0; i < 20000; i++)
		put(space->guarded, i);
	often = (struct itimerval){ 0 };
	setitimer(ITIMER_REAL, &often, NULL);
	EXPECT_EQ(faults, 20000 + signals);
	EXPECT_EQ(space->alias[0], (char)19999);
	EXPECT(signals > 0);
}

static jmp_buf out;

static void leap(struct ulpf_frame *frame)
{
	(void)frame;
	longjmp(out, 1);
}

TEST(handler_left_by_longjmp)
{
	struct space *space = space_closed(1);
	volatile int i;

	on_fault = leap;
	for (i = 0; i < 100; i++)
		if (!setjmp(out))
			put(space->guarded, 1);
	EXPECT_EQ(faults, 100);
	EXPECT_EQ(space->alias[0], 0);
}

static void stack_of_its_own(struct ulpf_frame *frame)
{
	char here;

	EXPECT(last_frame.info & ULPF_INFO_STACK);
	EXPECT(&here > (char *)child_stack && &here < child_stack + sizeof(child_stack));
	if (frame->addr == (uintptr_t)the_space->guarded)
		put(the_space->guarded + PAGE, 7);
	store_byte(frame);
}

static int use_stack(struct space *space, void *base, size_t length)
{
	struct ulpf_stack stack = { .size = sizeof(stack), .base = (uintptr_t)base, .length = length };

	return ioctl(space->fd, ULPF_STACK, &stack);
}

TEST(exception_stack)
{
	struct space *space = space_closed(4);
	int i;

	EXPECT_EQ(use_stack(space, child_stack, sizeof(child_stack)), 0);
	on_fault = stack_of_its_own;
	for (i = 0; i < 10; i++)
		put(space->guarded, i);
	EXPECT_EQ(faults, 20);
	EXPECT_EQ(space->alias[PAGE], 7);
	/* The program's own stack may be guarded then. */
	asm volatile("mov %%rsp, %%r12; mov %0, %%rsp; call put; mov %%r12, %%rsp"
		     : : "r"(space->alias + 4 * PAGE), "D"(space->guarded + 2 * PAGE), "S"(1)
		     : "r12", "memory", "cc", "rax", "rcx", "rdx", "r8", "r9", "r10", "r11");
	EXPECT_EQ(faults, 21);
	EXPECT_EQ(use_stack(space, NULL, 0), 0);
	EXPECT_ERRNO(use_stack(space, NULL, 0), ENOENT);
}

static void deeper(struct ulpf_frame *frame)
{
	(void)frame;
	put(the_space->guarded, 1);
}

static void never_ending(void)
{
	struct space *space = space_closed(1);

	EXPECT_EQ(use_stack(space, child_stack, sizeof(child_stack)), 0);
	on_fault = deeper;
	put(space->guarded, 1);
}

static void on_a_guarded_stack(void)
{
	struct space *space = space_closed(4);

	asm volatile("mov %0, %%rsp; call put" : : "r"(space->guarded + 2 * PAGE), "D"(space->guarded), "S"(1));
}

static void without_a_stack(void)
{
	struct space *space = space_closed(1);

	asm volatile("mov $4096, %%rsp; movb $1, (%0)" : : "r"(space->guarded));
}

TEST(no_room_for_the_frame)
{
	EXPECT_SIGNAL(never_ending, SIGSEGV);
	EXPECT_SIGNAL(on_a_guarded_stack, SIGSEGV);
	EXPECT_SIGNAL(without_a_stack, SIGSEGV);
}

static void *one_stack(void *arg)
{
	struct space *space = arg;
	char *stack = malloc(16384);
	int i;

	stack = (char *)(((uintptr_t)stack + 15) & ~15UL);
	EXPECT_EQ(use_stack(space, stack, 8192), 0);
	for (i = 0; i < 10; i++)
		put(space->guarded, i);
	return NULL;
}

/* Threads that end without a word leave no record for ever, and no other thread their stack. */
TEST(many_threads_with_stacks)
{
	struct space *space = space_closed(1);
	int i;

	for (i = 0; i < 300; i++) {
		pthread_t thread;

		EXPECT_EQ(pthread_create(&thread, NULL, one_stack, space), 0);
		pthread_join(thread, NULL);
	}
	EXPECT_EQ(faults, 3000);
	put(space->guarded, 1);
	EXPECT(!(last_frame.info & ULPF_INFO_STACK));
}

static void *store_many(void *arg)
{
	struct space *space = arg;
	int i;

	for (i = 0; i < 2000; i++)
		put(space->guarded + i % 64, i);
	return NULL;
}

TEST(many_threads_at_once)
{
	struct space *space = space_closed(1);
	pthread_t thread[8];
	int i;

	for (i = 0; i < 8; i++)
		EXPECT_EQ(pthread_create(&thread[i], NULL, store_many, space), 0);
	for (i = 0; i < 8; i++)
		pthread_join(thread[i], NULL);
	EXPECT_EQ(faults, 16000);
	EXPECT_EQ(counts(space).upcalls, 16000);
}
