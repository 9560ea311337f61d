/*
 * System calls from the same places again and again, so that ulpf patches these places: with signals,
 * time-outs, threads, children and code that comes and goes. Says "ok", or what was wrong.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

_Alignas(4096) long watched[512];

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

__attribute__((noinline)) void patched(void)
{
	__asm__ volatile("");
}

#define CHECK(what)                                                                            \
	do {                                                                                   \
		if (!(what)) {                                                                 \
			printf("line %d: %s is not so (errno %d)\n", __LINE__, #what, errno); \
			exit(1);                                                               \
		}                                                                              \
	} while (0)

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

/* ---- what handlers see ---- */

static volatile long ticks;
static volatile unsigned long seen[1 << 14];

static void tick(int sig, siginfo_t *info, void *context)
{
	long n = __atomic_fetch_add(&ticks, 1, __ATOMIC_SEQ_CST);

	(void)sig;
	(void)info;
	seen[n % (1 << 14)] = ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
}

/* Every PC that a handler has seen lies in code of the program, of a library or of the vdso. */
static void check_seen(void)
{
	static struct {
		unsigned long start, end;
	} code[512];
	int count = 0;
	char line[4096];
	FILE *maps = fopen("/proc/self/maps", "r");

	while (fgets(line, sizeof line, maps)) {
		char flags[8];

		sscanf(line, "%lx-%lx %7s", &code[count].start, &code[count].end, flags);
		if (strchr(flags, 'x') && (strchr(line, '/') || strstr(line, "[vdso]")) && count < 511)
			count++;
	}
	fclose(maps);
	for (int i = 0; i < 1 << 14 && seen[i]; i++) {
		int known = 0;

		for (int c = 0; c < count; c++)
			known |= seen[i] >= code[c].start && seen[i] < code[c].end;
		if (!known) {
			printf("a handler has seen PC %#lx\n", seen[i]);
			exit(1);
		}
	}
}

/* ---- a storm of signals over calls that block ---- */

static int to_main[2];

static void *writer(void *count)
{
	unsigned seed = 1;
	sigset_t all;

	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, NULL);
	for (long i = 0; i < (long)count; i++) {
		if (rand_r(&seed) % 4 == 0)
			usleep(rand_r(&seed) % 2000);
		CHECK(write(to_main[1], &i, sizeof i) == sizeof i);
	}
	return NULL;
}

static void storm(int flags, long count)
{
	struct sigaction action = {.sa_sigaction = tick, .sa_flags = SA_SIGINFO | flags};
	struct itimerval every = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
	struct epoll_event event = {.events = EPOLLIN};
	pthread_t thread;
	int epoll = epoll_create1(0);
	long expected = 0, before, interrupted = 0;

	sigaction(SIGALRM, &action, NULL);
	CHECK(pipe(to_main) == 0);
	CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, to_main[0], &event) == 0);
	setitimer(ITIMER_REAL, &every, NULL);
	pthread_create(&thread, NULL, writer, (void *)count);
	while (expected < count) {
		struct pollfd fd = {to_main[0], POLLIN, 0};
		double start = now();
		long value;
		int r;

		before = ticks;
		if (expected % 3 == 0) {
			r = epoll_wait(epoll, &event, 1, 3);
			CHECK(r != 0 || now() - start >= 0.0029);
			CHECK(r >= 0 || (errno == EINTR && ticks != before));
		} else if (expected % 3 == 1) {
			r = poll(&fd, 1, 2);
			CHECK(r != 0 || now() - start >= 0.0019);
			CHECK(r >= 0 || (errno == EINTR && ticks != before));
		} else {
			r = 1;
		}
		interrupted += r < 0;
		before = ticks;
		r = r > 0 ? read(to_main[0], &value, sizeof value) : 0;
		CHECK(r >= 0 || (errno == EINTR && !(flags & SA_RESTART) && ticks != before));
		interrupted += r < 0;
		if (r > 0) {
			CHECK(r == sizeof value && value == expected);
			expected++;
		}
		CHECK(syscall(SYS_getppid) == getppid());
		CHECK(lseek(to_main[0], 0, SEEK_SET) < 0 && errno == ESPIPE);
	}
	pthread_join(thread, NULL);
	setitimer(ITIMER_REAL, &never, NULL);
	close(to_main[0]);
	close(to_main[1]);
	close(epoll);
	CHECK(ticks > 0);
	check_seen();
}

/* ---- code that comes and goes ---- */

/* A function that makes system call `nr`, in a file of its own. */
static long (*code(const char *path, void *at, int nr))(void)
{
	unsigned char bytes[64] = {0x90, 0x90, 0x90, 0xb8, nr, 0, 0, 0, 0x0f, 0x05, 0xc3};
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0700);
	void *page;

	memset(bytes + 11, 0xcc, sizeof bytes - 11);
	CHECK(write(fd, bytes, sizeof bytes) == sizeof bytes && ftruncate(fd, 4096) == 0);
	page = mmap(at, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | (at ? MAP_FIXED : 0), fd, 0);
	CHECK(page != MAP_FAILED);
	close(fd);
	unlink(path);
	return (long (*)(void))page;
}

static void come_and_go(void)
{
	char path[] = "/tmp/busy_calls.XXXXXX";
	long (*f)(void);

	close(mkstemp(path));
	f = code(path, NULL, SYS_getppid);
	for (int i = 0; i < 200; i++)
		CHECK(f() == getppid());
	CHECK(code(path, (void *)f, SYS_gettid) == f); /* mapped over */
	for (int i = 0; i < 200; i++)
		CHECK(f() == getpid());
	munmap((void *)f, 4096);
	CHECK(code(path, (void *)f, SYS_getuid) == f); /* mapped again */
	for (int i = 0; i < 200; i++)
		CHECK(f() == getuid());
	CHECK(mprotect((void *)f, 4096, PROT_READ | PROT_WRITE) == 0);
	CHECK(((unsigned char *)f)[3] == 0xb8); /* who writes code reads it as it was */
	((unsigned char *)f)[4] = SYS_getppid;
	CHECK(mprotect((void *)f, 4096, PROT_READ | PROT_EXEC) == 0);
	for (int i = 0; i < 200; i++)
		CHECK(f() == getppid());
	munmap((void *)f, 4096);
}

/* ---- children ---- */

static void children(void)
{
	unsigned char before[16], *at = (unsigned char *)getppid;
	int status;

	memcpy(before, at, sizeof before);
	for (int i = 0; i < 200; i++)
		getppid();
	for (int i = 0; i < 20; i++) {
		pid_t self = getpid(), child = fork();

		if (child == 0)
			_exit(memcmp(before, at, sizeof before) ? 1 : getppid() == self ? 42 : 2);
		CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 42);
	}
	for (int i = 0; i < 20; i++) {
		pid_t self = getpid(), child = vfork();

		if (child == 0)
			_exit(getppid() == self ? 42 : 2);
		CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 42);
	}
}

/* ---- one long wait ---- */

static void wait_once(int ms)
{
	int epoll = epoll_create1(0);
	struct epoll_event event;
	double start;

	for (int i = 0; i < 100; i++)
		CHECK(epoll_wait(epoll, &event, 1, 0) == 0);
	patched();
	start = now();
	CHECK(epoll_wait(epoll, &event, 1, ms) == 0);
	printf("waited %.3f s\n", now() - start);
}

/* ---- the kernel writes to what is watched, now and then ---- */

static void reads(void)
{
	long value;

	CHECK(pipe(to_main) == 0);
	for (long i = 0; i < 200; i++) {
		CHECK(write(to_main[1], &i, sizeof i) == sizeof i);
		CHECK(read(to_main[0], i % 50 == 49 ? &watched[1] : &value, sizeof value) == sizeof value);
		CHECK((i % 50 == 49 ? watched[1] : value) == i);
	}
	patched();
}

static void *spin(void *done)
{
	while (!__atomic_load_n((int *)done, __ATOMIC_SEQ_CST))
		getppid();
	return NULL;
}

static void busy_threads(void)
{
	pthread_t thread[4];
	int done = 0;

	for (int i = 0; i < 4; i++)
		pthread_create(&thread[i], NULL, spin, &done);
	for (int i = 0; i < 300; i++) {
		watched[0] = i;
		if (i % 100 == 50)
			usleep(100);
	}
	patched();
	__atomic_store_n(&done, 1, __ATOMIC_SEQ_CST);
	for (int i = 0; i < 4; i++)
		pthread_join(thread[i], NULL);
}

/* ---- threads that find each other by a watched word ---- */

int *const baton = (int *)&watched[64];

static void pass(int value)
{
	unsigned long word = (unsigned long)baton, operation = FUTEX_WAKE_PRIVATE;
	long woken;

	__atomic_store_n(baton, value, __ATOMIC_SEQ_CST);
	__asm__ volatile("mov	%3, %%eax\n\tsyscall"
			 : "=&a"(woken), "+D"(word), "+S"(operation)
			 : "i"(SYS_futex), "d"(1)
			 : "rcx", "r11", "memory");
	CHECK((woken == 0 || woken == 1) && word == (unsigned long)baton && operation == FUTEX_WAKE_PRIVATE);
}

static void wait_for(int value)
{
	int now;

	while ((now = __atomic_load_n(baton, __ATOMIC_SEQ_CST)) != value)
		syscall(SYS_futex, baton, FUTEX_WAIT_PRIVATE, now, NULL, NULL, 0);
}

static void *runner(void *rounds)
{
	sigset_t all;

	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, NULL);
	for (long i = 0; i < (long)rounds; i++) {
		wait_for(2 * i + 1);
		pass(2 * i + 2);
	}
	return NULL;
}

static void relay(long rounds)
{
	struct sigaction action = {.sa_sigaction = tick, .sa_flags = SA_SIGINFO};
	struct itimerval every = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
	pthread_t thread;

	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &every, NULL);
	pthread_create(&thread, NULL, runner, (void *)rounds);
	for (long i = 0; i < rounds; i++) {
		pass(2 * i + 1);
		wait_for(2 * i + 2);
	}
	pthread_join(thread, NULL);
	setitimer(ITIMER_REAL, &never, NULL);
	check_seen();
	patched();
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";

	setlinebuf(stdout);
	ready();
	if (!strcmp(mode, "storm")) {
		storm(0, argc > 2 ? atol(argv[2]) : 1500);
		storm(SA_RESTART, argc > 2 ? atol(argv[2]) : 1500);
	} else if (!strcmp(mode, "code")) {
		come_and_go();
	} else if (!strcmp(mode, "children")) {
		children();
	} else if (!strcmp(mode, "wait")) {
		wait_once(argc > 2 ? atoi(argv[2]) : 3000);
	} else if (!strcmp(mode, "reads")) {
		reads();
	} else if (!strcmp(mode, "threads")) {
		busy_threads();
	} else if (!strcmp(mode, "relay")) {
		relay(argc > 2 ? atol(argv[2]) : 10000);
	} else {
		for (int i = 0; i < 300; i++)
			CHECK(getppid() == syscall(SYS_getppid) && getuid() == geteuid());
		patched();
		for (int i = 0; i < 300; i++)
			CHECK(getppid() == syscall(SYS_getppid) && getuid() == geteuid());
	}
	puts("busy_calls: ok");
	return 0;
}
