// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Accesses to guarded memory from outside the program: devices and kernel threads (ulpf_reach.ko), io_uring's
 * threads, other processes. No handler is entered on such a thread, and events do not have its registers.
 * Process numbers in events are those of the program's own namespace.
 */
#include "test.h"

#include <linux/io_uring.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>

#include "reach/reach.h"

/* linux/mm_types.h */
#define VM_FAULT_OOM		0x0001
#define VM_FAULT_SIGSEGV	0x0040
#define VM_FAULT_NOPAGE		0x0100
#define VM_FAULT_LOCKED		0x0200

static struct space *with_ring(size_t pages)
{
	struct space *space = space_closed(pages);

	EXPECT_EQ(ring(space, 1024, 1, 0), 0);
	return space;
}

static int policy(struct space *space, uint32_t flags)
{
	struct ulpf_policy arg = { .size = sizeof(arg), .flags = flags };

	return ioctl(space->fd, ULPF_POLICY, &arg);
}

static struct reach reach(struct reach how)
{
	static int fd = -1;

	if (fd < 0)
		fd = open("/dev/ulpf-reach", O_RDWR | O_CLOEXEC);
	if (fd < 0)
		SKIP("this machine has no ulpf_reach.ko");
	EXPECT_EQ(ioctl(fd, REACH, &how), 0);
	return how;
}

/* A system call of the program's own that stores a byte. */
static long getrandom_into(char *at)
{
	return syscall(SYS_getrandom, at, 1, 0);
}

static void expect_stranger(const struct ulpf_event *event, unsigned int type, const void *addr)
{
	EXPECT_EQ(event->type, type);
	EXPECT_EQ(event->addr, (uintptr_t)addr);
	EXPECT_EQ(event->ip, 0);
	EXPECT_EQ(event->sp, 0);
	EXPECT_EQ(event->syscall, -1);
	EXPECT(event->tid != (uint32_t)gettid());
}

/* A kernel thread has no way back to user mode, on which what it has opened would be closed: that is so a tick later. */
static void wait_until_closed(void)
{
	usleep(200000);
}

/* The program's own accesses are as ever. */
static void expect_guarded(struct space *space, const char *at)
{
	unsigned long before = faults;

	wait_until_closed();
	put((char *)at, 'p');
	EXPECT_EQ(faults, before + 1);
	EXPECT_EQ(space->alias[at - space->guarded], 'p');
}

/*
 * A device's page fault is resolved on a kernel's thread, as user mode's, and without registers. (The first
 * module took a null pointer, or the worker's, for the program's.)
 */
TEST(a_devices_page_fault)
{
	struct space *space = with_ring(4);
	struct ulpf_event event[8];
	int remote, write;

	for (remote = 1; remote >= 0; remote--)
		for (write = 1; write >= 0; write--) {
			char *at = space->guarded + PAGE * (2 * remote + write) + 5;
			struct reach done;

			EXPECT_EQ(set(space, at - 5, PAGE, write ? ULPF_RO : ULPF_NONE), 0);
			done = reach((struct reach){ .how = REACH_FAULT, .addr = (uintptr_t)at, .write = write, .user = 1, .remote = remote });
			EXPECT(!(done.result & (VM_FAULT_OOM | VM_FAULT_SIGSEGV)));
			EXPECT_EQ(faults, 0);
			EXPECT_EQ(events(space, event, 8), 1);
			expect_stranger(event, write ? ULPF_EVENT_KERNEL_WRITE : ULPF_EVENT_KERNEL_READ, at);
		}
	EXPECT_EQ(set(space, space->guarded, space->size, ULPF_RO), 0);
	expect_guarded(space, space->guarded + PAGE);
}

/* ... where the page is there for reading. */
TEST(a_devices_page_fault_on_a_page_that_is_there)
{
	struct space *space = with_ring(2);
	struct ulpf_event event[8];
	struct reach done;

	get(space->guarded);
	done = reach((struct reach){ .how = REACH_FAULT, .addr = (uintptr_t)space->guarded, .write = 1, .user = 1, .remote = 1 });
	EXPECT(!(done.result & (VM_FAULT_OOM | VM_FAULT_SIGSEGV)));
	EXPECT_EQ(faults, 0);
	EXPECT_EQ(events(space, event, 8), 1);
	expect_stranger(event, ULPF_EVENT_KERNEL_WRITE, space->guarded);
	expect_guarded(space, space->guarded);
}

TEST(a_devices_page_fault_that_shall_fail)
{
	struct space *space = with_ring(2);
	struct reach how = { .how = REACH_FAULT, .addr = (uintptr_t)space->guarded, .write = 1, .user = 1, .remote = 1 };

	EXPECT_EQ(policy(space, ULPF_POLICY_EFAULT), 0);
	EXPECT(reach(how).result & VM_FAULT_SIGSEGV);
	EXPECT_EQ(policy(space, 0), 0);
	EXPECT_EQ(apply(space, ULPF_OP_GUARD, space->guarded, PAGE, ULPF_GUARD_STOP), 0);
	EXPECT(reach(how).result & VM_FAULT_SIGSEGV);
	EXPECT_EQ(faults, 0);
}

/* Without a handler, and with an exception stack: nothing of it is a worker's. */
TEST(a_devices_page_fault_without_a_handler)
{
	struct space *space = with_ring(2);
	struct reach how = { .how = REACH_FAULT, .addr = (uintptr_t)space->guarded, .write = 1, .user = 1, .remote = 1 };

	EXPECT_EQ(handler(space, NULL, 0), 0);
	EXPECT(!(reach(how).result & VM_FAULT_SIGSEGV));
	EXPECT_EQ(counts(space).unhandled, 0);
	EXPECT_EQ(counts(space).kernel_writes, 1);
}

/* The depth learned for the program's own page faults is not learned from others' faults. */
TEST(faults_of_the_program_after_a_devices)
{
	struct space *space = with_ring(2);
	int i;

	reach((struct reach){ .how = REACH_FAULT, .addr = (uintptr_t)space->guarded, .user = 1 });
	for (i = 0; i < 100; i++) {
		get(space->guarded + PAGE);
		put(space->guarded + PAGE + i, i);
	}
	EXPECT_EQ(faults, 100);
}

/*
 * One access of a kernel thread. If the thread is delayed for longer than a tick, the page is closed again.
 * It then opens the page once more, which is another event.
 */
static void expect_access_of_a_stranger(struct space *space, unsigned int type, const void *addr)
{
	struct ulpf_event event[8];
	int i, n = events(space, event, 8);

	EXPECT(n >= 1);
	for (i = 0; i < n; i++)
		expect_stranger(event + i, type, addr);
}

TEST(kernel_threads_that_borrow_the_memory)
{
	static const unsigned int ways[] = { REACH_BORROW, REACH_PAGES };
	struct space *space = with_ring(2);
	size_t i;

	for (i = 0; i < 2; i++) {
		struct reach how = { .how = ways[i], .addr = (uintptr_t)space->guarded + 9, .write = 1, .byte = 'a' + i };

		EXPECT_EQ(set(space, space->guarded, space->size, ULPF_RO), 0);
		EXPECT_EQ(reach(how).result, 0);
		EXPECT_EQ(space->alias[9], 'a' + (char)i);
		expect_access_of_a_stranger(space, ULPF_EVENT_KERNEL_WRITE, space->guarded + 9);
		EXPECT_EQ(set(space, space->guarded, space->size, ULPF_NONE), 0);
		how.write = 0;
		/* A worker may be the same one as before. */
		wait_until_closed();
		EXPECT_EQ(reach(how).byte, 'a' + (char)i);
		expect_access_of_a_stranger(space, ULPF_EVENT_KERNEL_READ, space->guarded + 9);
		EXPECT_EQ(faults, 0);
		EXPECT_EQ(policy(space, ULPF_POLICY_EFAULT), 0);
		EXPECT_EQ(set(space, space->guarded, space->size, ULPF_NONE), 0);
		wait_until_closed();
		EXPECT_EQ(reach(how).result, EFAULT);
		EXPECT_EQ(policy(space, 0), 0);
	}
	EXPECT_EQ(set(space, space->guarded, space->size, ULPF_RO), 0);
	expect_guarded(space, space->guarded + 9);
}

TEST(a_fault_that_is_fixed_up)
{
	struct space *space = with_ring(2);
	struct ulpf_event event[8];

	EXPECT_EQ(reach((struct reach){ .how = REACH_FIXUP, .addr = (uintptr_t)space->guarded + 3, .write = 1 }).result, 0);
	EXPECT_EQ(faults, 0);
	EXPECT_EQ(events(space, event, 8), 1);
	expect_stranger(event, ULPF_EVENT_KERNEL_WRITE, event->addr ? (void *)event->addr : NULL);
	expect_guarded(space, space->guarded);
}

/* A thread of the program's that never leaves the kernel reads a file into guarded memory. */
TEST(threads_of_io_uring)
{
	struct io_uring_params params = { 0 };
	struct space *space = with_ring(2);
	struct ulpf_event event[8];
	struct io_uring_sqe *sqe;
	char *rings, *sqes;
	int file = memfd_create("file", 0), fd;

	EXPECT_EQ(pwrite(file, "hello", 5, 0), 5);
	fd = syscall(SYS_io_uring_setup, 4, &params);
	if (fd < 0)
		SKIP("no io_uring here");
	rings = mmap(NULL, params.sq_off.array + 4 * sizeof(uint32_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, IORING_OFF_SQ_RING);
	sqes = mmap(NULL, 4 * sizeof(*sqe), PROT_READ | PROT_WRITE, MAP_SHARED, fd, IORING_OFF_SQES);
	EXPECT(rings != MAP_FAILED && sqes != MAP_FAILED);
	sqe = (struct io_uring_sqe *)sqes;
	*sqe = (struct io_uring_sqe){
		.opcode = IORING_OP_READ, .flags = IOSQE_ASYNC, .fd = file, .addr = (uintptr_t)space->guarded + 7, .len = 5,
	};
	((uint32_t *)(rings + params.sq_off.array))[0] = 0;
	__atomic_store_n((uint32_t *)(rings + params.sq_off.tail), 1, __ATOMIC_RELEASE);
	EXPECT_EQ(syscall(SYS_io_uring_enter, fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0), 1);
	EXPECT_EQ(memcmp(space->alias + 7, "hello", 5), 0);
	EXPECT_EQ(faults, 0);
	EXPECT_EQ(events(space, event, 8), 1);
	EXPECT_EQ(event->type, ULPF_EVENT_KERNEL_WRITE);
	EXPECT_EQ(event->pid, getpid());
	EXPECT(event->tid != (uint32_t)gettid());
	EXPECT_EQ(event->ip, 0);
	EXPECT_EQ(event->sp, 0);
	EXPECT_EQ(event->syscall, -1);
}

/*
 * Another process writes, by each of REACHES. It may have more rights than the program; its registers are not
 * in the event.
 */
static bool by_vm_writev(pid_t pid, char *at)
{
	struct iovec from = { "x", 1 }, to = { at, 1 };

	return process_vm_writev(pid, &from, 1, &to, 1, 0) == 1;
}

static bool by_proc_mem(pid_t pid, char *at)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/mem", pid);
	fd = open(path, O_RDWR);
	return fd >= 0 && pwrite(fd, "x", 1, (uintptr_t)at) == 1;
}

static bool by_ptrace(pid_t pid, char *at)
{
	return !ptrace(PTRACE_SEIZE, pid, 0, 0) && !ptrace(PTRACE_INTERRUPT, pid, 0, 0) && waitpid(pid, NULL, __WALL) == pid &&
	       !ptrace(PTRACE_POKEDATA, pid, at, (void *)0x7878787878787878) && !ptrace(PTRACE_DETACH, pid, 0, 0);
}

TEST(registers_of_other_processes_are_not_told)
{
	bool (*const ways[])(pid_t, char *) = { by_vm_writev, by_proc_mem, by_ptrace };
	struct space *space = with_ring(2);
	struct ulpf_event event[8];
	pid_t parent = getpid(), pid;
	int status;
	size_t i;

	for (i = 0; i < 3; i++) {
		EXPECT_EQ(set(space, space->guarded, PAGE, ULPF_RO), 0);
		space->alias[16] = 0;
		pid = fork();
		if (!pid)
			_exit(ways[i](parent, space->guarded + 16) ? 0 : 1);
		while (waitpid(pid, &status, 0) != pid)
			;
		EXPECT_EQ(status, 0);
		EXPECT_EQ(space->alias[16], 'x');
		EXPECT_EQ(events(space, event, 8), 1);
		expect_stranger(event, ULPF_EVENT_KERNEL_WRITE, (void *)event->addr);
		EXPECT_EQ((event->addr ^ (uintptr_t)space->guarded) / PAGE, 0);
		EXPECT_EQ(event->pid, pid);
		EXPECT_EQ(event->tid, pid);
		EXPECT_EQ(faults, 0);
	}
	expect_guarded(space, space->guarded);
}

/* In a container, events name its processes by the container's numbers, and outside processes by 0. */
TEST(numbers_of_the_programs_namespace)
{
	struct { struct space space; uint32_t pid; } *shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int go[2], there[2], status;
	pid_t inside;
	char byte;

	EXPECT_EQ(pipe(go), 0);
	EXPECT_EQ(pipe(there), 0);
	if (unshare(CLONE_NEWPID))
		SKIP("no pid namespaces here");
	inside = fork();
	if (!inside) {
		struct space *space = with_ring(2);
		struct ulpf_event event[8];
		pid_t child;

		EXPECT_EQ(getpid(), 1);
		/* The program itself. */
		EXPECT_EQ(getrandom_into(space->guarded), 1);
		EXPECT_EQ(events(space, event, 8), 1);
		EXPECT_EQ(event->pid, 1);
		EXPECT_EQ(event->tid, 1);
		EXPECT(event->ip && event->sp);
		EXPECT_EQ(event->syscall, SYS_getrandom);
		/* A process beside it. */
		child = fork();
		if (!child)
			_exit(by_vm_writev(1, space->guarded) ? 0 : 1);
		EXPECT_EQ(waitpid(child, &status, 0), child);
		EXPECT_EQ(status, 0);
		EXPECT_EQ(events(space, event, 8), 1);
		EXPECT_EQ(event->tid, child);
		/* One outside. */
		shared->space = *space;
		EXPECT_EQ(write(there[1], "", 1), 1);
		EXPECT_EQ(read(go[0], &byte, 1), 1);
		EXPECT_EQ(events(space, event, 8), 1);
		expect_stranger(event, ULPF_EVENT_KERNEL_WRITE, space->guarded);
		EXPECT_EQ(event->pid, 0);
		EXPECT_EQ(event->tid, 0);
		_exit(0);
	}
	close(there[1]);
	EXPECT_EQ(read(there[0], &byte, 1), 1);
	EXPECT(by_vm_writev(inside, shared->space.guarded));
	EXPECT_EQ(write(go[1], "", 1), 1);
	EXPECT_EQ(waitpid(inside, &status, 0), inside);
	EXPECT_EQ(status, 0);
}

/* The clock of events is the program's own, too. */
TEST(time_of_the_programs_namespace)
{
	int status;
	pid_t pid;

	if (unshare(0x80 /* CLONE_NEWTIME */) || !file_set("/proc/self/timens_offsets", "monotonic 1000000 0\n"))
		SKIP("no time namespaces here");
	pid = fork();
	if (!pid) {
		struct timespec before, after;
		struct space *space = with_ring(1);
		struct ulpf_event event[8];

		clock_gettime(CLOCK_MONOTONIC, &before);
		EXPECT_EQ(getrandom_into(space->guarded), 1);
		clock_gettime(CLOCK_MONOTONIC, &after);
		EXPECT_EQ(events(space, event, 8), 1);
		EXPECT(event->time / 1000000000 >= (uint64_t)before.tv_sec);
		EXPECT(event->time / 1000000000 <= (uint64_t)after.tv_sec);
		_exit(0);
	}
	EXPECT_EQ(waitpid(pid, &status, 0), pid);
	EXPECT_EQ(status, 0);
}
