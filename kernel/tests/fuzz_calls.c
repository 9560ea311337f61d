// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Random calls: ulpf.calls=N of them (3,000 by default), from ulpf.seed=N. Most arguments are almost
 * right, so that calls get far. Two threads and the kernel touch guarded memory meanwhile. The test
 * passes if the kernel does not complain.
 */
#include "test.h"

#include <sys/syscall.h>
#include <time.h>

enum { SPACES = 4, PAGES = 1024, WINDOW = 6 };

static uint64_t state = 1;

static uint64_t draw(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state * 0x2545F4914F6CDD1DULL >> 16;
}

static unsigned int below(unsigned int n)
{
	return draw() % n;
}

static struct {
	int fd;
	char *map[WINDOW];	/* PAGES each, at most; 2 MiB apart */
	char *pli;
} space[SPACES];
static char *room;
static volatile bool over;
static volatile unsigned long touched;

static uint64_t address(void)
{
	switch (below(12)) {
	case 0:
		return draw();
	case 1:
		return 0xffff888000000000 + draw() % 4096;
	case 2:
		return (uintptr_t)space[below(SPACES)].pli + below(64 * 128);
	case 3:
		return (uintptr_t)&state;
	case 4:
		return 0;
	default:
		return (uintptr_t)room + (uint64_t)below(SPACES * WINDOW) * (2 << 20) +
		       below(below(10) ? 32 : 512) * PAGE + (below(30) ? 0 : below(4096));
	}
}

static uint64_t length(void)
{
	switch (below(8)) {
	case 0:
		return draw();
	case 1:
		return 2 << 20;
	case 2:
		return 0;
	default:
		return (1 + below(16)) * PAGE;
	}
}

static uint64_t region(void)
{
	return (uintptr_t)space[below(SPACES)].pli + below(64) * 128;
}

static struct ulpf_op any_op(void)
{
	struct ulpf_op op = { below(3) ? ULPF_OP_SET : below(7), below(40) ? 0 : below(4), address(), length(), below(5) };

	if (op.op == ULPF_OP_BIND || op.op == ULPF_OP_UNBIND) {
		op.addr &= below(10) ? ~0x1fffffUL : ~0UL;
		op.length = below(10) ? 2 << 20 : op.length;
		op.arg = op.op == ULPF_OP_BIND ? region() : 0;
	} else if (below(10)) {
		op.addr &= ~0xfffUL;
		if (op.op == ULPF_OP_GUARD && op.arg == ULPF_GUARD_STOP && below(8))
			op.arg = ULPF_GUARD_LOG;
	}
	return op;
}

static uint32_t size_of(uint32_t right)
{
	return below(20) ? right : below(2) ? below(200) : draw();
}

static void any_ioctl(int fd)
{
	static struct ulpf_op ops[64];
	union {
		struct ulpf_query query;
		struct ulpf_handler handler;
		struct ulpf_stack stack;
		struct ulpf_op op;
		struct ulpf_batch batch;
		struct ulpf_ring ring;
		struct ulpf_page page;
		struct ulpf_counts counts;
		uint64_t words[32];
	} u;
	unsigned int i;
	int store;

	memset(&u, 0, sizeof(u));
	switch (below(16)) {
	case 0:
		u.query.size = size_of(sizeof(u.query));
		u.query.version = below(3);
		ioctl(fd, ULPF_QUERY, &u);
		return;
	case 1:
		/*
		 * An invalid handler would end this process: register our own, or an address that is
		 * refused.
		 */
		u.handler.size = size_of(sizeof(u.handler));
		u.handler.flags = below(4) ? ULPF_HANDLER_REPLACE : below(8);
		u.handler.entry = below(3) ? (uintptr_t)entry : (address() | 1UL << 63);
		ioctl(fd, ULPF_HANDLER, &u);
		return;
	case 2:
		u.stack.size = size_of(sizeof(u.stack));
		u.stack.base = below(2) ? 0 : 1UL << 63 | draw();
		u.stack.length = below(2) ? 0 : draw();
		ioctl(fd, ULPF_STACK, &u);
		return;
	case 3:
		u.ring.size = size_of(sizeof(u.ring));
		u.ring.records = 1U << below(12);
		u.ring.watermark = 1 + below(64);
		u.ring.latency_us = below(3) * 1000;
		ioctl(fd, ULPF_RING, &u);
		return;
	case 4:
		u.page.size = size_of(sizeof(u.page));
		u.page.addr = address();
		ioctl(fd, ULPF_LOOKUP, &u);
		return;
	case 5:
		u.counts.size = size_of(sizeof(u.counts));
		ioctl(fd, ULPF_COUNTS, &u);
		return;
	case 6:
	case 7:
		for (i = 0; i < 64; i++)
			ops[i] = any_op();
		u.batch.size = size_of(sizeof(u.batch));
		u.batch.ops = below(10) ? (uintptr_t)ops : address();
		u.batch.count = below(10) ? below(65) : draw();
		u.batch.op_size = below(20) ? sizeof(*ops) : below(100);
		ioctl(fd, ULPF_BATCH, &u);
		return;
	case 8:
		for (i = 0; i < 32; i++)
			u.words[i] = draw();
		ioctl(fd, draw(), &u);
		return;
	case 9:
		store = ioctl(fd, _IO(ULPF_IOC_TYPE, 0x20 + below(11)), (void *)address());
		if (store > 2)
			close(store);
		return;
	default:
		u.op = any_op();
		ioctl(fd, ULPF_APPLY, &u);
	}
}

/* Faults are permitted, as a program's handler would: whatever comes. */
static void permit(struct ulpf_frame *frame)
{
	uintptr_t page = frame->addr & ~(PAGE - 1), k = page >> 12 & 511;
	unsigned int i, failed = 0;

	for (i = 0; i < SPACES; i++) {
		struct ulpf_op op = { ULPF_OP_SET, 0, page, PAGE, ULPF_RW };

		failed += ioctl(space[i].fd, ULPF_APPLY, &op) != 0;
	}
	/* The space is closed but still mapped, so its permissions cannot change any more. */
	if (failed == SPACES)
		mmap((void *)page, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	/* A store to regions is an answer, too. */
	if (k % 3 == 0)
		for (i = 1; i < 32; i++)
			__atomic_and_fetch(&space[0].pli[i * 128 + k / 4], ~(3 << k % 4 * 2), __ATOMIC_RELAXED);
	touched++;
}

static void lost(int number, siginfo_t *info, void *context)
{
	/* No handler registered, or a guard that stops, or nothing mapped: make room and go on. */
	(void)number;
	(void)context;
	uintptr_t window = (uintptr_t)info->si_addr & ~0x1fffffUL;
	unsigned int s = (window - (uintptr_t)room) / (2 << 20) / WINDOW;
	static __thread uintptr_t last;
	bool again = window == last;

	if (s >= SPACES)
		_exit(4);
	/*
	 * A region of ours may forbid an access without asking a handler; a new mapping would not
	 * help then.
	 */
	last = again ? 0 : window;
	if (again ||
	    mmap((void *)window, 512 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, space[s].fd, ULPF_MAP_GUARD) == MAP_FAILED)
		mmap((void *)window, 512 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}

static char *somewhere(void)
{
	return room + (uint64_t)below(SPACES * WINDOW) * (2 << 20) + (uint64_t)below(below(10) ? 32 : 512) * PAGE + below(4090);
}

static void touch(void)
{
	volatile char *at = somewhere();

	if (below(2))
		*at = 1;
	else
		(void)*at;
}

static void *touching(void *arg)
{
	uint64_t mine = 12345;

	(void)arg;
	while (!over) {
		mine = mine * 6364136223846793005 + 1442695040888963407;
		((volatile char *)room)[(mine >> 33) % (SPACES * WINDOW) * (2 << 20) + (mine >> 20) % (32 * PAGE)] += 1;
		usleep(50);
	}
	return NULL;
}

static void map_one(unsigned int s)
{
	unsigned int w = below(WINDOW);
	char *at = room + (uint64_t)(s * WINDOW + w) * (2 << 20);
	size_t size = (below(3) ? 512 : 1 + below(512)) * PAGE;
	uint64_t kind = below(5) == 0 ? ULPF_MAP_ALIAS : ULPF_MAP_GUARD;

	mmap(at, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, space[s].fd, kind + below(64) * PAGE);
}

static void open_one(unsigned int s)
{
	if (space[s].fd >= 0)
		close(space[s].fd);
	space[s].fd = open(ULPF_DEVICE, O_RDWR | O_CLOEXEC | O_NONBLOCK);
	space[s].pli = mmap(space[s].pli, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | (space[s].pli ? MAP_FIXED : 0),
			    space[s].fd, ULPF_MAP_PLI);
	if (below(8))
		handler(&(struct space){ .fd = space[s].fd }, entry, 0);
	map_one(s);
}

static const int advice[] = {
	MADV_DONTNEED, MADV_REMOVE, MADV_DONTFORK, MADV_DOFORK, MADV_POPULATE_READ, MADV_POPULATE_WRITE,
};

static void other_call(unsigned int s)
{
	static int file = -1;
	char buffer[640];

	switch (below(14)) {
	case 0:
		map_one(s);
		break;
	case 1:
		mprotect(somewhere(), length() & ~0xfffUL & 0xfffff, below(4));
		break;
	case 2:
		if (!below(20))
			open_one(s);
		break;
	case 3:
		if (!below(50) && !fork()) {
			touch();
			any_ioctl(space[s].fd);
			_exit(0);
		}
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
		break;
	case 4:
		if (read(space[s].fd, buffer, below(sizeof(buffer))) < 0)
			break;
		break;
	case 5: {
		struct pollfd poll_fd = { .fd = space[s].fd, .events = POLLIN };

		poll(&poll_fd, 1, 0);
		break;
	}
	case 6:
		madvise((void *)((uintptr_t)somewhere() & ~0xfffUL), PAGE * below(16),
			advice[below(6)]);
		break;
	case 7:
		mremap((void *)((uintptr_t)somewhere() & ~0xfffUL), PAGE * below(8), PAGE * below(8), below(2));
		break;
	case 8:
	case 9:
		if (file < 0)
			file = memfd_create("file", 0);
		if (below(2) ? pread(file, somewhere(), below(9000), 0) : pwrite(file, somewhere(), below(9000), 0))
			break;
		break;
	case 10:
		mmap(NULL, PAGE * below(8), below(4), below(2) ? MAP_SHARED : MAP_PRIVATE, space[s].fd,
		     (uint64_t)below(5) << 60 | draw() >> (16 + below(40)) << 12);
		break;
	default:
		touch();
	}
}

static unsigned long option(const char *name, unsigned long otherwise)
{
	char text[4096];
	int fd = open("/proc/cmdline", O_RDONLY);
	ssize_t got = read(fd, text, sizeof(text) - 1);
	char *at;

	close(fd);
	text[got < 0 ? 0 : got] = 0;
	at = strstr(text, name);
	return at ? strtoul(at + strlen(name), NULL, 0) : otherwise;
}

TEST(random_calls)
{
	struct sigaction action = { .sa_sigaction = lost, .sa_flags = SA_SIGINFO | SA_NODEFER };
	unsigned long calls = option("ulpf.calls=", 3000), i;
	unsigned long step = calls / 10 ? calls / 10 : 1;
	pthread_t thread;
	unsigned int s;

	alarm(0);
	setvbuf(stdout, NULL, _IOLBF, 0);
	state = option("ulpf.seed=", 1) * 0x9E3779B97F4A7C15ULL | 1;
	sigaction(SIGSEGV, &action, NULL);
	sigaction(SIGBUS, &action, NULL);
	room = mmap(NULL, (uint64_t)(SPACES * WINDOW + 1) * (2 << 20), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	EXPECT(room != MAP_FAILED);
	room = (char *)(((uintptr_t)room + 0x1fffff) & ~0x1fffffUL);
	on_fault = permit;
	for (s = 0; s < SPACES; s++) {
		space[s].fd = -1;
		open_one(s);
		EXPECT(space[s].fd >= 0);
	}
	EXPECT_EQ(pthread_create(&thread, NULL, touching, NULL), 0);
	for (i = 0; i < calls; i++) {
		if (i % step == step - 1)
			printf("# %lu calls, %lu upcalls\n", i + 1, touched);
		s = below(SPACES);
		if (below(3))
			any_ioctl(space[s].fd);
		else
			other_call(s);
	}
	over = true;
	pthread_join(thread, NULL);
	printf("# %lu calls, %lu upcalls\n", i, touched);
	EXPECT(touched > calls / 2000);
}
