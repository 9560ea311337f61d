// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Resource limits, and violent ends: limits, no memory left, ends of all kinds inside a handler. */
#include "test.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

/* The module cannot go as long as a mapping is left, whatever has happened to the descriptor. */
TEST(module_stays_while_in_use)
{
	struct space *space = space_closed(1);

	close(space->fd);
	EXPECT_ERRNO(syscall(SYS_delete_module, "ulpf", O_NONBLOCK), EAGAIN);
	put(space->guarded, 1);
	EXPECT_EQ(faults, 1);
}

TEST(locked_memory_is_limited)
{
	struct rlimit limit = { 65536, 65536 };
	struct space *space;

	EXPECT_EQ(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
	EXPECT_EQ(setresuid(1000, 1000, 1000), 0);
	space = space_make(1);
	EXPECT_ERRNO(ring(space, 4096, 1, 0), ENOMEM);
	EXPECT_EQ(ring(space, 64, 1, 0), 0);
	EXPECT(mmap(NULL, 14 * PAGE, PROT_READ, MAP_SHARED, space->fd, ULPF_MAP_PLI) != MAP_FAILED);
	EXPECT(mmap(NULL, 16 * PAGE, PROT_READ, MAP_SHARED, space->fd, ULPF_MAP_PLI) == MAP_FAILED && errno == ENOMEM);
}

static void write_text(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);

	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		SKIP("no memory cgroup here");
	close(fd);
}

static void fill(void)
{
	struct space *space = space_make(16384);
	size_t i;

	for (i = 0; i < space->size; i += PAGE)
		space->guarded[i] = 1;
}

/* Runs in a memory cgroup of 16 MiB; its wait status. */
static int in_small_group(test_fn *run)
{
	char pid[16];
	int status;

	write_text("/sys/fs/cgroup/cgroup.subtree_control", "+memory");
	mkdir("/sys/fs/cgroup/small", 0755);
	write_text("/sys/fs/cgroup/small/memory.max", "16777216");
	if (!fork()) {
		snprintf(pid, sizeof(pid), "%d", getpid());
		write_text("/sys/fs/cgroup/small/cgroup.procs", pid);
		run();
		_exit(0);
	}
	wait(&status);
	if (WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED)
		_exit(SKIPPED);
	rmdir("/sys/fs/cgroup/small");
	return status;
}

static bool is_killed(int status)
{
	return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

/* Guarded memory is charged: a group of 16 MiB cannot have 64. */
TEST(memory_is_charged_to_the_cgroup)
{
	EXPECT(is_killed(in_small_group(fill)));
}

static void fill_in_the_handler(struct ulpf_frame *frame)
{
	size_t i;

	for (i = 0; i < the_space->size; i += PAGE)
		the_space->alias[i] = 1;
	store_byte(frame);
}

static void too_much_in_a_handler(void)
{
	struct space *space = space_closed(16384);

	on_fault = fill_in_the_handler;
	put(space->guarded, 1);
}

TEST(out_of_memory_in_the_handler)
{
	EXPECT(is_killed(in_small_group(too_much_in_a_handler)));
}

/* Permissions of 64 TiB take 8 GiB of regions, which are charged. */
static void permissions_without_end(void)
{
	struct space *space = space_make(1);
	size_t size = 1UL << 46;
	char *guarded = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, space->fd, ULPF_MAP_GUARD);

	EXPECT(guarded != MAP_FAILED);
	EXPECT_ERRNO(set(space, guarded, size, ULPF_RO), ENOMEM);
	_exit(9);
}

TEST(permissions_are_charged_to_the_cgroup)
{
	int status = in_small_group(permissions_without_end);

	EXPECT(is_killed(status) || (WIFEXITED(status) && WEXITSTATUS(status) == 9));
}

static void exec_in_the_handler(struct ulpf_frame *frame)
{
	(void)frame;
	execv("/proc/self/exe", (char *const[]){ "test_limits", "after_exec", NULL });
	_exit(127);
}

TEST(after_exec)
{
}

static void spawn_in_the_handler(struct ulpf_frame *frame)
{
	int status;
	pid_t pid = vfork();

	if (!pid) {
		execv("/proc/self/exe", (char *const[]){ "test_limits", "after_exec", NULL });
		_exit(127);
	}
	EXPECT_EQ(waitpid(pid, &status, 0), pid);
	EXPECT_EQ(status, 0);
	store_byte(frame);
}

TEST(exec_in_a_handler)
{
	struct space *space = space_closed(1);
	int status, i;
	pid_t pid;

	on_fault = spawn_in_the_handler;
	for (i = 1; i <= 3; i++)
		put(space->guarded, i);
	EXPECT_EQ(faults, 3);
	EXPECT_EQ(space->alias[0], 3);
	pid = fork();
	if (!pid) {
		space = space_closed(1);
		on_fault = exec_in_the_handler;
		put(space->guarded, 1);
		_exit(1);
	}
	EXPECT_EQ(waitpid(pid, &status, 0), pid);
	EXPECT_EQ(status, 0);
}

static volatile pid_t forked;

static void fork_in_the_handler(struct ulpf_frame *frame)
{
	forked = fork();
	if (forked)
		store_byte(frame);
}

/* The child, which has no handler, returns from one: its store passes. */
TEST(fork_in_a_handler)
{
	struct space *space = space_closed(2);
	int status;

	on_fault = fork_in_the_handler;
	put(space->guarded + PAGE, 7);
	if (!forked)
		_exit(space->guarded[PAGE] == 7 && faults == 1 ? 0 : 1);
	EXPECT_EQ(waitpid(forked, &status, 0), forked);
	EXPECT_EQ(status, 0);
	on_fault = store_byte;
	put(space->guarded, 1);
	EXPECT_EQ(faults, 2);
}

static void end_thread(struct ulpf_frame *frame)
{
	(void)frame;
	pthread_exit(NULL);
}

static void *store_once(void *arg)
{
	put(arg, 1);
	return NULL;
}

TEST(thread_ends_in_a_handler)
{
	struct space *space = space_closed(1);
	pthread_t thread;
	int i;

	on_fault = end_thread;
	for (i = 0; i < 50; i++) {
		EXPECT_EQ(pthread_create(&thread, NULL, store_once, space->guarded), 0);
		EXPECT_EQ(pthread_join(thread, NULL), 0);
	}
	EXPECT_EQ(faults, 50);
}

static void take_all_away(struct ulpf_frame *frame)
{
	struct space *space = the_space;

	frame->ip += 3;
	EXPECT_EQ(munmap(space->guarded, space->size), 0);
	EXPECT_EQ(munmap(space->alias, space->size), 0);
	EXPECT_EQ(close(space->fd), 0);
}

TEST(all_is_unmapped_in_a_handler)
{
	int i;

	for (i = 0; i < 50; i++) {
		struct space *space = space_closed(4);

		on_fault = take_all_away;
		put(space->guarded + PAGE, 1);
	}
	EXPECT_EQ(faults, 50);
}

static void *store_for_ever(void *arg)
{
	for (;;)
		put(arg, 1);
	return NULL;
}

/* Killed with threads in the handler, on the way there, in system calls into guarded memory. */
TEST(killed_in_the_midst_of_it)
{
	int status, round, i;

	for (round = 0; round < 10; round++) {
		pid_t pid = fork();

		if (!pid) {
			struct space *space = space_closed(8);
			int file = memfd_create("file", 0);
			pthread_t thread;

			EXPECT_EQ(ring(space, 64, 1, 1000), 0);
			EXPECT_EQ(ftruncate(file, PAGE), 0);
			for (i = 0; i < 4; i++)
				pthread_create(&thread, NULL, store_for_ever, space->guarded + i * PAGE);
			for (;;) {
				EXPECT_EQ(pread(file, space->guarded + 5 * PAGE, 64, 0), 64);
				EXPECT_EQ(set(space, space->guarded + 6 * PAGE, PAGE, ULPF_RO), 0);
			}
		}
		usleep(20000 + 5000 * round);
		kill(pid, SIGKILL);
		EXPECT_EQ(waitpid(pid, &status, 0), pid);
		EXPECT(is_killed(status));
	}
}

TEST(hundreds_of_spaces)
{
	int i;

	for (i = 0; i < 300; i++) {
		struct space *space = space_closed(8);

		put(space->guarded, 1);
		EXPECT_EQ(ring(space, 64, 1, 1000), 0);
		if (i % 3) {
			close(space->fd);
			munmap(space->guarded, i % 2 ? space->size : PAGE);
			munmap(space->alias, space->size);
		}
	}
	EXPECT_EQ(faults, 300);
}

static void no_child_asks(void)
{
	EXPECT_ERRNO(ioctl(the_space->fd, ULPF_STORE), EPERM);
	_exit(0);
}

TEST(the_store_is_a_file)
{
	struct space *space = space_make(4);
	struct stat status;
	char text[8];
	int store = ioctl(space->fd, ULPF_STORE);

	EXPECT(store >= 0);
	EXPECT(fcntl(store, F_GETFD) & FD_CLOEXEC);
	EXPECT_EQ(handler(space, entry, 0), 0);
	EXPECT_EQ(set(space, space->guarded, PAGE, ULPF_NONE), 0);
	EXPECT_EQ(pwrite(store, "hello", 5, 2 * PAGE), 5);
	EXPECT_EQ(memcmp(space->guarded + 2 * PAGE, "hello", 5), 0);
	space->alias[0] = 'x';
	EXPECT_EQ(pread(store, text, 1, 0), 1);
	EXPECT_EQ(text[0], 'x');
	EXPECT_EQ(lseek(store, PAGE, SEEK_DATA), 2 * PAGE);
	EXPECT_EQ(fallocate(store, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 2 * PAGE, PAGE), 0);
	EXPECT_EQ(space->guarded[2 * PAGE], 0);
	EXPECT_EQ(fstat(store, &status), 0);
	EXPECT_EQ(status.st_size, ULPF_STORE_SIZE);
	EXPECT_EQ(in_child(no_child_asks), 0);
	/* It outlives the space. */
	munmap(space->guarded, space->size);
	munmap(space->alias, space->size);
	close(space->fd);
	EXPECT_EQ(pread(store, text, 1, 0), 1);
	EXPECT_EQ(text[0], 'x');
}
