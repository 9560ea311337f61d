// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * A hostile user with access to the device: which data of others it can reach, and how much of the machine it
 * can use up.
 */
#include "test.h"

#include <linux/userfaultfd.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

#define HUGE_LENGTH	(1UL << 46)
#define REGION		(1UL << ULPF_REGION_SHIFT)
/* A region beyond the first 64 costs an eighth of a page. */
#define PAGE_REGIONS	8
#define FREE_REGIONS	64

static double seconds(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

static char *huge(struct space *space)
{
	char *guarded = mmap(NULL, HUGE_LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, space->fd, ULPF_MAP_GUARD);

	EXPECT(guarded != MAP_FAILED);
	return guarded;
}

static void become(uid_t uid)
{
	EXPECT_EQ(setresgid(uid, uid, uid), 0);
	EXPECT_EQ(setresuid(uid, uid, uid), 0);
}

static void limit_memory(unsigned long pages)
{
	struct rlimit limit = { pages * PAGE, pages * PAGE };

	EXPECT_EQ(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
}

/* One operation over 64 TiB is refused when its user may lock no more memory, and nothing has changed then. */
TEST(one_operation_is_limited)
{
	struct space *space;
	char *guarded, *end;
	double begin;

	limit_memory(16);
	become(1001);
	space = space_make(1);
	guarded = huge(space);
	begin = seconds();
	EXPECT_ERRNO(set(space, guarded, HUGE_LENGTH, ULPF_RO), ENOMEM);
	EXPECT_ERRNO(apply(space, ULPF_OP_GUARD, guarded, HUGE_LENGTH, ULPF_GUARD_STOP), ENOMEM);
	/* An operation that needs no regions is cheap, however long its range is. */
	EXPECT_EQ(set(space, guarded, HUGE_LENGTH, ULPF_RW), 0);
	EXPECT_EQ(apply(space, ULPF_OP_GUARD, guarded, HUGE_LENGTH, ULPF_GUARD_OFF), 0);
	EXPECT_EQ(apply(space, ULPF_OP_SYNC, guarded, HUGE_LENGTH, 0), 0);
	EXPECT(seconds() - begin < 5);
	EXPECT_EQ(lookup(space, guarded).permission, ULPF_RW);
	EXPECT_EQ(lookup(space, guarded).guard, ULPF_GUARD_OFF);
	guarded[0] = 1;
	/* The regions that were made are there for smaller ones. */
	end = (char *)(((uintptr_t)guarded & ~(REGION - 1)) + (FREE_REGIONS + 15 * PAGE_REGIONS) * REGION);
	EXPECT_EQ(set(space, guarded, end - guarded, ULPF_RO), 0);
	EXPECT_EQ(lookup(space, end - PAGE).permission, ULPF_RO);
	EXPECT_EQ(lookup(space, end).permission, ULPF_RW);
}

/* The administrator may, and changes his mind. */
TEST(one_operation_ends_when_its_process_is_killed)
{
	int ends[2], status, i;
	double begin;
	char byte;

	for (i = 0; i < 3; i++) {
		static struct ulpf_op ops[1024];
		pid_t pid;

		EXPECT_EQ(pipe(ends), 0);
		pid = fork();
		if (!pid) {
			struct space *space = space_make(1);
			struct ulpf_batch batch = { .size = sizeof(batch), .ops = (uintptr_t)ops, .count = 1024, .op_size = sizeof(*ops) };
			char *guarded = huge(space);
			int n;

			EXPECT_EQ(write(ends[1], "", 1), 1);
			if (i == 0)
				set(space, guarded, HUGE_LENGTH, ULPF_RO);
			else if (i == 1)
				apply(space, ULPF_OP_GUARD, guarded, HUGE_LENGTH, ULPF_GUARD_LOG);
			/* Many operations of a batch under one lock, each long. */
			for (n = 0; n < 1024; n++)
				ops[n] = (struct ulpf_op){ ULPF_OP_SET, 0, (uintptr_t)guarded, 1UL << 36, n % 2 ? ULPF_RO : ULPF_NONE };
			for (n = 0; n < 1000; n++)
				ioctl(space->fd, ULPF_BATCH, &batch);
			_exit(9);
		}
		EXPECT_EQ(read(ends[0], &byte, 1), 1);
		usleep(300000);
		begin = seconds();
		kill(pid, SIGKILL);
		EXPECT_EQ(waitpid(pid, &status, 0), pid);
		EXPECT(WIFSIGNALED(status));
		EXPECT(seconds() - begin < 20);
		close(ends[0]);
		close(ends[1]);
	}
}

/* All of a user's processes have one limit, and what a descriptor holds is charged until it is closed. */
TEST(the_limit_is_the_users)
{
	int pair[2], status;
	struct space *space;
	pid_t pid;
	char byte;

	limit_memory(16);
	become(1002);
	EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	pid = fork();
	if (!pid) {
		struct iovec text = { "", 1 };
		char control[CMSG_SPACE(sizeof(int))] = "";
		struct msghdr message = { .msg_iov = &text, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control) };
		struct cmsghdr *head = CMSG_FIRSTHDR(&message);

		space = space_make(1);
		EXPECT(mmap(NULL, 14 * PAGE, PROT_READ, MAP_SHARED, space->fd, ULPF_MAP_PLI) != MAP_FAILED);
		*head = (struct cmsghdr){ .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS };
		memcpy(CMSG_DATA(head), &space->fd, sizeof(int));
		EXPECT_EQ(sendmsg(pair[1], &message, 0), 1);
		_exit(0);
	}
	EXPECT_EQ(waitpid(pid, &status, 0), pid);
	EXPECT_EQ(status, 0);
	/* The descriptor waits in the socket, and the process that made it is gone. */
	space = space_make(1);
	EXPECT(mmap(NULL, 3 * PAGE, PROT_READ, MAP_SHARED, space->fd, ULPF_MAP_PLI) == MAP_FAILED && errno == ENOMEM);
	EXPECT(mmap(NULL, 2 * PAGE, PROT_READ, MAP_SHARED, space->fd, ULPF_MAP_PLI) != MAP_FAILED);
	EXPECT_ERRNO(ring(space, 64, 1, 0), ENOMEM);
	EXPECT_EQ(read(pair[0], &byte, 1), 1);		/* the descriptor is not received, and so it is closed */
	usleep(100000);
	EXPECT_EQ(ring(space, 64, 1, 0), 0);
}

static volatile bool finished;

static long open_files(void)
{
	char text[64] = "";
	int fd = open("/proc/sys/fs/file-nr", O_RDONLY | O_CLOEXEC);

	EXPECT(fd >= 0 && read(fd, text, sizeof(text) - 1) > 0);
	close(fd);
	return atol(text);
}

static void *most_open_files(void *arg)
{
	long *most = arg, now;

	while (!finished) {
		now = open_files();
		*most = now > *most ? now : *most;
		usleep(1000);
	}
	return NULL;
}

/* One call that touches much guarded memory does not leave a record for each page of it. (A record is an open file.) */
TEST(one_call_that_touches_much)
{
	enum { PAGES = 4096 };
	struct space *space = space_make(PAGES);
	int file = memfd_create("file", 0);
	struct ulpf_counts counted;
	long before, most = 0;
	pthread_t thread;
	size_t i;

	EXPECT_EQ(ftruncate(file, space->size), 0);
	EXPECT_EQ(handler(space, entry, 0), 0);
	on_fault = store_byte;
	EXPECT_EQ(set(space, space->guarded, space->size, ULPF_RO), 0);
	before = open_files();
	EXPECT_EQ(pthread_create(&thread, NULL, most_open_files, &most), 0);
	EXPECT_EQ(pread(file, space->guarded, space->size, 0), (ssize_t)space->size);
	finished = true;
	pthread_join(thread, NULL);
	/* 16 for sure, 512 if there were one for eight pages; each processor's count may be off by 32. */
	EXPECT_EQ(most - before < 200 ? 0 : most - before, 0);
	counted = counts(space);
	EXPECT(counted.kernel_writes >= PAGES && counted.kernel_writes < PAGES + 1024);
	for (i = 0; i < space->size; i += 512 * PAGE)
		put(space->guarded + i, 1);
	EXPECT_EQ(faults, PAGES / 512);
}

/* vm.memfd_noexec exists to forbid this: a writable shmem file that is then executed as a program. */
TEST(the_store_is_no_program)
{
	struct space *space = space_make(1);
	int store = ioctl(space->fd, ULPF_STORE), self = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	char *const arguments[] = { "test_intruders", "nothing", NULL }, *const environment[] = { NULL };
	static char text[1 << 16];
	struct stat status;
	ssize_t got, at;

	for (at = 0; (got = read(self, text, sizeof(text))) > 0; at += got)
		EXPECT_EQ(pwrite(store, text, got, at), got);
	EXPECT_EQ(fstat(store, &status), 0);
	EXPECT_EQ(status.st_mode & 0111, 0);
	EXPECT_ERRNO(syscall(SYS_execveat, store, "", arguments, environment, AT_EMPTY_PATH), EACCES);
	/* Kernels before 6.3 have no vm.memfd_noexec: its owner may change his mind there. */
	if (!access("/proc/sys/vm/memfd_noexec", F_OK))
		EXPECT_ERRNO(fchmod(store, 0777), EPERM);
	/* Executable mappings of guarded memory are allowed. */
	EXPECT(mmap(NULL, PAGE, PROT_READ | PROT_EXEC, MAP_SHARED, space->fd, ULPF_MAP_GUARD) != MAP_FAILED);
}

TEST(nothing)
{
}

/* No setting of vm.memfd_noexec keeps the device from working. (It can only be raised, and counts per pid namespace.) */
TEST(whatever_vm_memfd_noexec_says)
{
	static const char *const values[] = { "1", "2" };
	int status, i;
	pid_t pid;

	if (access("/proc/sys/vm/memfd_noexec", F_OK))
		SKIP("this kernel has no vm.memfd_noexec");
	EXPECT(!unshare(CLONE_NEWPID));
	pid = fork();
	if (!pid) {
		for (i = 0; i < 2; i++) {
			struct space *space;

			EXPECT(file_set("/proc/sys/vm/memfd_noexec", values[i]));
			/* memfd_create() with MFD_EXEC */
			if (i == 1)
				EXPECT_ERRNO(syscall(SYS_memfd_create, "program", 0x10), EACCES);
			space = space_closed(2);
			faults = 0;
			put(space->guarded, 1);
			EXPECT_EQ(faults, 1);
			test_the_store_is_no_program();
		}
		_exit(0);
	}
	EXPECT_EQ(waitpid(pid, &status, 0), pid);
	EXPECT_EQ(status, 0);
}

/* A forked child's stores into PLI regions would open, or close, its parent's pages. */
TEST(children_do_not_get_regions)
{
	struct space *space = space_closed(2);
	char *pli = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, space->fd, ULPF_MAP_PLI), *prefix;
	int status;
	pid_t pid;

	EXPECT(pli != MAP_FAILED);
	prefix = (char *)((uintptr_t)space->guarded & ~(REGION - 1));
	memset(pli + 128, 0x55, 128);
	EXPECT_EQ(apply(space, ULPF_OP_BIND, prefix, REGION, (uintptr_t)pli + 128), 0);
	pid = fork();
	if (!pid) {
		pli[128] = 0;
		_exit(0);
	}
	EXPECT_EQ(waitpid(pid, &status, 0), pid);
	EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	EXPECT_EQ(pli[128], 0x55);
	put(space->guarded, 1);
	EXPECT_EQ(faults, 1);
}

/*
 * A page that may be written no more is not opened by changes of the program's own protection. (The kernel makes
 * entries writable again that have the mark of an earlier write.)
 */
TEST(protection_that_comes_and_goes)
{
	static const unsigned int lengths[] = { 1, 64 };
	int i, round;

	for (round = 0; round < 2; round++)
		for (i = 0; i < 2; i++) {
			size_t pages = lengths[i], n;
			struct space *space = space_make(pages);

			EXPECT_EQ(handler(space, entry, 0), 0);
			on_fault = store_byte;
			for (n = 0; n < pages; n++)
				space->guarded[n * PAGE] = 1;
			/* Before, or after. */
			if (round)
				EXPECT_EQ(mprotect(space->guarded, space->size, PROT_READ), 0);
			EXPECT_EQ(set(space, space->guarded, space->size, ULPF_RO), 0);
			EXPECT_EQ(mprotect(space->guarded, space->size, PROT_READ), 0);
			EXPECT_EQ(mprotect(space->guarded, space->size, PROT_READ | PROT_WRITE), 0);
			faults = 0;
			for (n = 0; n < pages; n++)
				put(space->guarded + n * PAGE, 2);
			EXPECT_EQ(faults, pages);
			for (n = 0; n < pages; n++)
				EXPECT_EQ(space->alias[n * PAGE], 2);
		}
}

/* A guarded mapping cannot be used to stop the kernel in the midst of an access. */
TEST(no_userfaultfd)
{
	struct space *space = space_make(4);
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register area = {
		.range = { (uintptr_t)space->guarded, space->size }, .mode = UFFDIO_REGISTER_MODE_MISSING,
	};

	if (fd < 0)
		SKIP("no userfaultfd here");
	EXPECT_EQ(ioctl(fd, UFFDIO_API, &api), 0);
	EXPECT_ERRNO(ioctl(fd, UFFDIO_REGISTER, &area), EINVAL);
}

/* Neither a second guarded mapping by the back door, nor one that goes elsewhere. */
TEST(mappings_that_are_moved_and_stretched)
{
	struct space *space = space_closed(4);
	char *pli = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, space->fd, ULPF_MAP_PLI), *events;
	char *place = mmap(NULL, 16 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	EXPECT_EQ(ring(space, 64, 1, 0), 0);
	events = mmap(NULL, 2 * PAGE, PROT_READ, MAP_SHARED, space->fd, ULPF_MAP_RING);
	EXPECT(events != MAP_FAILED && pli != MAP_FAILED);
	EXPECT(mremap(space->guarded, 0, 4 * PAGE, MREMAP_MAYMOVE) == MAP_FAILED);
	EXPECT(mremap(space->guarded, 4 * PAGE, 8 * PAGE, MREMAP_MAYMOVE) == MAP_FAILED);
	EXPECT(mremap(space->guarded, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place) == MAP_FAILED);
	EXPECT(mremap(space->guarded, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | 4 /* MREMAP_DONTUNMAP */) == MAP_FAILED);
	EXPECT(mremap(pli, PAGE, 8 * PAGE, MREMAP_MAYMOVE) == MAP_FAILED);
	EXPECT(mremap(pli, 0, PAGE, MREMAP_MAYMOVE) == MAP_FAILED);
	EXPECT(mremap(events, 2 * PAGE, 8 * PAGE, MREMAP_MAYMOVE) == MAP_FAILED);
	EXPECT_ERRNO(mprotect(events, PAGE, PROT_READ | PROT_WRITE), EACCES);
	put(space->guarded + 1, 1);
	EXPECT_EQ(faults, 1);
	/* Pages of a file where they were guarded: they are no longer. */
	EXPECT_EQ(syscall(SYS_remap_file_pages, space->guarded, PAGE, 0, 3, 0), 0);
	space->guarded[0] = 7;
	EXPECT_EQ(space->alias[3 * PAGE], 7);
	EXPECT_EQ(lookup(space, space->guarded).state, 0);
	put(space->guarded + PAGE, 1);
	EXPECT_EQ(faults, 2);
}

/* A stranger with the descriptor sees the ring, as the owner has wanted, and changes nothing. */
TEST(a_stranger_with_the_descriptor)
{
	struct space *space = space_closed(2);
	int status;
	pid_t pid;

	EXPECT_EQ(ring(space, 64, 1, 0), 0);
	pid = fork();
	if (!pid) {
		struct ulpf_page page = { .size = sizeof(page), .addr = (uintptr_t)space->guarded };
		struct ulpf_stack stack = { .size = sizeof(stack), .base = 4096, .length = 4096 };
		unsigned long offset;

		become(1003);
		for (offset = 0; offset < 3; offset++)
			EXPECT(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, space->fd, offset << 60) == MAP_FAILED && errno == EPERM);
		EXPECT(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, space->fd, ULPF_MAP_RING) == MAP_FAILED && errno == EINVAL);
		EXPECT(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, space->fd, ULPF_MAP_RING) != MAP_FAILED);
		EXPECT(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, space->fd, ULPF_MAP_RING + PAGE) == MAP_FAILED);
		EXPECT_ERRNO(set(space, space->guarded, PAGE, ULPF_RW), EPERM);
		EXPECT_ERRNO(handler(space, entry, ULPF_HANDLER_REPLACE), EPERM);
		EXPECT_ERRNO(ioctl(space->fd, ULPF_STORE), EPERM);
		EXPECT_ERRNO(ioctl(space->fd, ULPF_LOOKUP, &page), EPERM);
		EXPECT_ERRNO(ioctl(space->fd, ULPF_STACK, &stack), EPERM);
		EXPECT_EQ(counts(space).upcalls, 0);
		_exit(0);
	}
	EXPECT_EQ(waitpid(pid, &status, 0), pid);
	EXPECT_EQ(status, 0);
}

static void *short_life(void *arg)
{
	struct ulpf_stack stack = { .size = sizeof(stack), .base = (uintptr_t)malloc(8192) & ~15UL, .length = 4096 };

	stack.base += 16;
	EXPECT_EQ(ioctl(((struct space *)arg)->fd, ULPF_STACK, &stack), 0);
	return NULL;
}

static void *storing(void *arg)
{
	struct space *space = arg;

	while (!finished) {
		put(space->guarded, 1);
		/* Creating a thread needs the lock that faults hold. */
		sched_yield();
	}
	return NULL;
}

/* A thread's record is looked up while those of dead threads go. */
TEST(threads_come_and_go_while_others_fault)
{
	struct space *space = space_closed(1);
	pthread_t store[2], thread[8];
	int i, n;

	for (i = 0; i < 2; i++)
		EXPECT_EQ(pthread_create(&store[i], NULL, storing, space), 0);
	for (i = 0; i < 20; i++) {
		for (n = 0; n < 8; n++)
			EXPECT_EQ(pthread_create(&thread[n], NULL, short_life, space), 0);
		for (n = 0; n < 8; n++)
			pthread_join(thread[n], NULL);
	}
	finished = true;
	for (i = 0; i < 2; i++)
		pthread_join(store[i], NULL);
}

/* Any allocation of it may fail, and then nothing is left over. (Kernels that inject such failures only.) */
static void all_kinds_of_calls(void)
{
	struct ulpf_batch batch = { .size = sizeof(batch), .op_size = sizeof(struct ulpf_op), .count = 1 };
	struct ulpf_stack stack = { .size = sizeof(stack), .base = 4096, .length = 4096 };
	int fd = open(ULPF_DEVICE, O_RDWR | O_CLOEXEC), file = memfd_create("file", 0);
	struct space space = { .fd = fd, .size = 64 * PAGE };
	struct ulpf_op op;
	char *pli;

	if (fd < 0)
		return;
	space.guarded = mmap(NULL, space.size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, ULPF_MAP_GUARD);
	space.alias = mmap(NULL, space.size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, ULPF_MAP_ALIAS);
	if (space.guarded == MAP_FAILED || space.alias == MAP_FAILED)
		return;
	the_space = &space;
	handler(&space, entry, 0);
	ring(&space, 64, 1, 0);
	pli = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, ULPF_MAP_PLI);
	set(&space, space.guarded, space.size, ULPF_RO);
	op = (struct ulpf_op){ ULPF_OP_SET, 0, (uintptr_t)space.guarded, PAGE, ULPF_NONE };
	batch.ops = (uintptr_t)&op;
	ioctl(fd, ULPF_BATCH, &batch);
	ioctl(fd, ULPF_STACK, &stack);
	if (pli != MAP_FAILED)
		apply(&space, ULPF_OP_BIND, (void *)((uintptr_t)space.guarded & ~(REGION - 1)), REGION, (uintptr_t)pli + 128);
	if (pwrite(file, "x", 1, 70000) == 1 && pread(file, space.guarded, space.size, 0) < 0)
		errno = 0;
	ioctl(fd, ULPF_STORE);
	munmap(space.guarded + 8 * PAGE, 8 * PAGE);
}

static bool fail_allocations(const char *what, const char *field, const char *value)
{
	char path[128];

	snprintf(path, sizeof(path), "/sys/kernel/debug/%s/%s", what, field);
	return file_set(path, value);
}

TEST(no_memory_in_the_midst_of_it)
{
	static const char *const kinds[] = { "failslab", "fail_page_alloc" };
	int i, n;

	mount("debug", "/sys/kernel/debug", "debugfs", 0, NULL);
	if (access("/sys/kernel/debug/failslab", F_OK))
		SKIP("this kernel injects no failures");
	for (i = 0; i < 2; i++) {
		fail_allocations(kinds[i], "task-filter", "Y");
		fail_allocations(kinds[i], "ignore-gfp-wait", "N");
		fail_allocations(kinds[i], "verbose", "0");
		fail_allocations(kinds[i], "probability", "100");
		fail_allocations(kinds[i], "times", "-1");
	}
	fail_allocations("fail_page_alloc", "min-order", "0");
	/* The n-th allocation of each run fails, and none after it (/proc/self/fail-nth). */
	for (n = 1; n < 250; n++) {
		int status;
		pid_t pid = fork();

		if (!pid) {
			char number[16];

			on_fault = open_page;
			snprintf(number, sizeof(number), "%d", n);
			if (!file_set("/proc/thread-self/fail-nth", number))
				_exit(SKIPPED);
			all_kinds_of_calls();
			_exit(0);
		}
		EXPECT_EQ(waitpid(pid, &status, 0), pid);
		if (WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED)
			SKIP("no /proc/self/fail-nth");
		EXPECT(status == 0 || WIFSIGNALED(status));
	}
	for (i = 0; i < 2; i++)
		fail_allocations(kinds[i], "probability", "0");
	for (i = 0; i < 3; i++)
		all_kinds_of_calls();
}
