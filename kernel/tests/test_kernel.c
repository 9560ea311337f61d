// SPDX-License-Identifier: GPL-2.0 OR MIT
/* System calls and other processes reach guarded memory, and are seen. */
#include "test.h"

#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>

static struct space *with_ring(size_t pages)
{
	struct space *space = space_make(pages);

	EXPECT_EQ(ring(space, 1024, 1, 0), 0);
	EXPECT_EQ(handler(space, entry, 0), 0);
	on_fault = store_byte;
	return space;
}

TEST(read_writes_a_guarded_buffer)
{
	struct space *space = with_ring(4);
	struct ulpf_event event[8];
	int ends[2];

	EXPECT_EQ(set(space, space->guarded, space->size, ULPF_RO), 0);
	EXPECT_EQ(pipe(ends), 0);
	EXPECT_EQ(write(ends[1], "hello", 5), 5);
	EXPECT_EQ(read(ends[0], space->guarded + 10, 5), 5);
	EXPECT_EQ(memcmp(space->alias + 10, "hello", 5), 0);
	EXPECT_EQ(faults, 0);
	EXPECT_EQ(events(space, event, 8), 1);
	EXPECT_EQ(event[0].type, ULPF_EVENT_KERNEL_WRITE);
	EXPECT_EQ(event[0].addr, (uintptr_t)space->guarded + 10);
	EXPECT_EQ(event[0].syscall, SYS_read);
	EXPECT_EQ(event[0].tid, gettid());
	EXPECT_EQ(event[0].pid, getpid());
	EXPECT_EQ(event[0].info, ULPF_INFO_WRITE);
	EXPECT(event[0].ip && event[0].sp && event[0].time);
	/* And the page is closed again. */
	put(space->guarded + 10, 'j');
	EXPECT_EQ(faults, 1);
	/* As it is when the kernel finds it mapped for reading. */
	EXPECT_EQ(get(space->guarded + 10), 'j');
	EXPECT_EQ(write(ends[1], "again", 5), 5);
	EXPECT_EQ(read(ends[0], space->guarded + 10, 5), 5);
	EXPECT_EQ(events(space, event, 8), 1);
	put(space->guarded + 10, 'k');
	EXPECT_EQ(faults, 2);
	EXPECT_EQ(memcmp(space->alias + 10, "kgain", 5), 0);
}

TEST(write_reads_a_guarded_buffer)
{
	struct space *space = with_ring(4);
	struct ulpf_event event[8];
	char text[8];
	int ends[2];

	strcpy(space->alias, "secret");
	EXPECT_EQ(set(space, space->guarded, PAGE, ULPF_RO), 0);
	EXPECT_EQ(pipe(ends), 0);
	EXPECT_EQ(write(ends[1], space->guarded, 6), 6);
	EXPECT_EQ(events(space, event, 8), 0);	/* loads are permitted */
	EXPECT_EQ(set(space, space->guarded, PAGE, ULPF_NONE), 0);
	EXPECT_EQ(write(ends[1], space->guarded, 6), 6);
	EXPECT_EQ(read(ends[0], text, 6), 6);
	EXPECT_EQ(memcmp(text, "secret", 6), 0);
	EXPECT_EQ(events(space, event, 8), 1);
	EXPECT_EQ(event[0].type, ULPF_EVENT_KERNEL_READ);
	EXPECT_EQ(event[0].syscall, SYS_write);
	on_fault = load_byte;
	EXPECT_EQ(get(space->guarded), 's');
	EXPECT_EQ(faults, 1);
}

TEST(one_event_for_each_page_of_a_large_call)
{
	struct space *space = with_ring(64);
	struct ulpf_event event[128];
	int file = memfd_create("file", 0), i;

	EXPECT_EQ(ftruncate(file, space->size), 0);
	EXPECT_EQ(set(space, space->guarded, space->size, ULPF_NONE), 0);
	EXPECT_EQ(pread(file, space->guarded, space->size, 0), (ssize_t)space->size);
	EXPECT_EQ(events(space, event, 128), 64);
	for (i = 0; i < 64; i++) {
		EXPECT_EQ(event[i].addr, (uintptr_t)space->guarded + i * PAGE);
		EXPECT_EQ(event[i].type, ULPF_EVENT_KERNEL_WRITE);
		EXPECT_EQ(event[i].stamp, i + 1);
	}
	for (i = 0; i < 64; i++)
		put(space->guarded + i * PAGE, i);
	EXPECT_EQ(faults, 64);
	EXPECT_EQ(counts(space).kernel_writes, 64);
}

static volatile sig_atomic_t caught;

static void on_signal(int number)
{
	(void)number;
	caught++;
}

/* Signal frames go to a guarded stack: the kernel writes there on its way back from exceptions. */
TEST(signal_frames_on_a_guarded_stack)
{
	struct space *space = with_ring(16);
	stack_t stack = { .ss_sp = space->guarded, .ss_size = space->size };
	struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_ONSTACK };
	struct ulpf_event event[64];
	int round;

	on_fault = open_page;
	EXPECT_EQ(sigaltstack(&stack, NULL), 0);
	sigaction(SIGTRAP, &action, NULL);
	sigaction(SIGUSR1, &action, NULL);
	for (round = 0; round < 5; round++) {
		EXPECT_EQ(set(space, space->guarded, space->size, ULPF_RO), 0);
		if (round % 2)
			get(space->guarded + space->size - 2048);
		asm volatile("int3");		/* an exception: orig_ax is -1 there as at a page fault */
		EXPECT_EQ(caught, 2 * round + 1);
		EXPECT_EQ(set(space, space->guarded, space->size, ULPF_RO), 0);
		if (round % 2)
			get(space->guarded + space->size - 2048);
		raise(SIGUSR1);
		EXPECT_EQ(caught, 2 * round + 2);
	}
	EXPECT(counts(space).kernel_writes >= 10);
	EXPECT(events(space, event, 64) >= 10);
	EXPECT_EQ(event[0].syscall, -1);
}

TEST(another_process_writes)
{
	struct space *space = with_ring(2);
	struct ulpf_event event[4];
	pid_t parent = getpid(), pid;
	int status;

	EXPECT_EQ(set(space, space->guarded, PAGE, ULPF_RO), 0);
	pid = fork();
	if (!pid) {
		struct iovec from = { "xyz", 3 }, to = { space->guarded + 7, 3 };

		_exit(process_vm_writev(parent, &from, 1, &to, 1, 0) == 3 ? 0 : errno);
	}
	EXPECT_EQ(waitpid(pid, &status, 0), pid);
	EXPECT_EQ(status, 0);
	EXPECT_EQ(memcmp(space->alias + 7, "xyz", 3), 0);
	EXPECT_EQ(events(space, event, 4), 1);
	EXPECT_EQ(event[0].type, ULPF_EVENT_KERNEL_WRITE);
	EXPECT_EQ(event[0].tid, pid);
	put(space->guarded + 7, 'a');
	EXPECT_EQ(faults, 1);
}

TEST(futexes_on_guarded_memory)
{
	struct space *space = with_ring(2);
	pthread_mutexattr_t attributes;
	pthread_mutex_t *mutex = (pthread_mutex_t *)space->guarded;

	on_fault = open_page;
	pthread_mutexattr_init(&attributes);
	pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT);
	pthread_mutex_init(mutex, &attributes);
	EXPECT_EQ(set(space, space->guarded, PAGE, ULPF_RO), 0);
	/* FUTEX_LOCK_PI writes the word, with page faults off at first. */
	EXPECT_EQ(syscall(SYS_futex, mutex, 6 /* FUTEX_LOCK_PI */, 0, NULL, NULL, 0), 0);
	EXPECT_EQ(*(int *)space->alias & 0x3fffffff, gettid());
	EXPECT(counts(space).kernel_writes >= 1);
	EXPECT_EQ(lookup(space, space->guarded).permission, ULPF_RO);
}

/* Calls one after the other: nothing accumulates. */
TEST(ten_thousand_calls)
{
	struct space *space = with_ring(2);
	int file = memfd_create("file", 0), i;

	EXPECT_EQ(ftruncate(file, 1), 0);
	EXPECT_EQ(set(space, space->guarded, PAGE, ULPF_RO), 0);
	for (i = 0; i < 10000; i++)
		EXPECT_EQ(pread(file, space->guarded, 1, 0), 1);
	EXPECT_EQ(counts(space).kernel_writes, 10000);
}

static int policy(struct space *space, uint32_t flags)
{
	struct ulpf_policy arg = { .size = sizeof(arg), .flags = flags };

	return ioctl(space->fd, ULPF_POLICY, &arg);
}

TEST(accesses_that_shall_fail)
{
	struct space *space = with_ring(4);
	struct iovec local = { .iov_base = "xy", .iov_len = 2 }, remote = { .iov_base = space->guarded, .iov_len = 2 };
	struct ulpf_event event[8];
	char text[8];
	int ends[2];

	EXPECT_ERRNO(policy(space, ~0U), EINVAL);
	EXPECT_EQ(policy(space, ULPF_POLICY_EFAULT), 0);
	EXPECT_EQ(set(space, space->guarded, PAGE, ULPF_RO), 0);
	EXPECT_EQ(set(space, space->guarded + PAGE, PAGE, ULPF_NONE), 0);
	EXPECT_EQ(pipe(ends), 0);
	EXPECT_EQ(write(ends[1], "hello", 5), 5);
	EXPECT_ERRNO(read(ends[0], space->guarded + 10, 5), EFAULT);
	/* Mapped for reading, too. */
	EXPECT_EQ(get(space->guarded + 10), 0);
	EXPECT_ERRNO(read(ends[0], space->guarded + 10, 5), EFAULT);
	EXPECT_ERRNO(write(ends[1], space->guarded + PAGE, 5), EFAULT);
	EXPECT_ERRNO(process_vm_writev(getpid(), &local, 1, &remote, 1, 0), EFAULT);
	EXPECT_EQ(write(ends[1], space->guarded, 5), 5);
	EXPECT_EQ(read(ends[0], text, 5), 5);
	EXPECT_EQ(faults, 0);
	/* The program's own accesses are caught as before, and there was no event. */
	put(space->guarded + 10, 'j');
	EXPECT_EQ(faults, 1);
	EXPECT_EQ(fcntl(space->fd, F_SETFL, O_NONBLOCK), 0);
	EXPECT_ERRNO(read(space->fd, event, sizeof(event)), EAGAIN);
	EXPECT_EQ(policy(space, 0), 0);
	EXPECT_EQ(read(ends[0], space->guarded + 10, 5), 5);
	EXPECT_EQ(events(space, event, 8), 1);
}

static void *sleep_as_the_page_says(void *arg)
{
	struct timespec *time = arg;

	EXPECT_EQ(syscall(SYS_nanosleep, time, NULL), 0);
	return NULL;
}

/* One page table for all threads: a page that a call has opened is open for all. But not for as long as it sleeps. */
TEST(call_that_sleeps_does_not_leave_the_page_open)
{
	struct space *space = with_ring(2);
	struct timespec *time = (struct timespec *)space->guarded;
	struct ulpf_event event[4];
	pthread_t thread;

	on_fault = load_byte;
	*(struct timespec *)space->alias = (struct timespec){ .tv_sec = 3 };
	EXPECT_EQ(set(space, space->guarded, PAGE, ULPF_NONE), 0);
	EXPECT_EQ(pthread_create(&thread, NULL, sleep_as_the_page_says, time), 0);
	while (!counts(space).kernel_reads)
		usleep(1000);
	usleep(300000);
	get(space->guarded);
	EXPECT_EQ(faults, 1);
	pthread_join(thread, NULL);
	EXPECT_EQ(counts(space).kernel_reads, 1);
	EXPECT_EQ(events(space, event, 4), 1);
	EXPECT_EQ(event[0].info, ULPF_INFO_OPEN);
	EXPECT_EQ(event[0].syscall, SYS_nanosleep);
	/* With a single thread the flag is clear. (A joined thread may need a few steps to end.) */
	*(struct timespec *)space->alias = (struct timespec){ 0 };
	do {
		sleep_as_the_page_says(time);
		EXPECT_EQ(events(space, event, 4), 1);
	} while (event[0].info);
}
