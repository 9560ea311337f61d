// SPDX-License-Identifier: GPL-2.0 OR MIT
/* The device, as a program uses it; handlers for tests; the test runner. */
#include "test.h"

#include <stdarg.h>

void (*volatile on_fault)(struct ulpf_frame *frame) = open_page;
volatile unsigned long faults;
struct ulpf_frame last_frame;
struct space *volatile the_space;

/* The interface asks for no more than this; see kernel/README.md. */
asm(".globl entry\n"
    "entry: push %rax; push %rcx; push %rdx; push %rsi; push %rdi\n"
    "	push %r8; push %r9; push %r10; push %r11; push %rbp\n"
    "	lea 80(%rsp), %rdi\n"
    "	call handle\n"
    "	mov 128(%rsp), %rax; lea -136(%rax), %rax\n"
    "	mov 104(%rsp), %rcx; mov %rcx, (%rax); mov %rax, 128(%rsp)\n"
    "	pop %rbp; pop %r11; pop %r10; pop %r9; pop %r8\n"
    "	pop %rdi; pop %rsi; pop %rdx; pop %rcx; pop %rax\n"
    "	lea 40(%rsp), %rsp; popfq; pop %rsp; ret $128\n"
    ".globl put\n"
    "put:	mov %sil, (%rdi)\n"	/* 3 bytes */
    "	ret\n"
    ".globl get\n"
    "get:	mov (%rdi), %al\n"	/* 2 bytes */
    "	ret\n");

__attribute__((used)) void handle(struct ulpf_frame *frame)
{
	last_frame = *frame;
	__atomic_fetch_add(&faults, 1, __ATOMIC_RELAXED);
	on_fault(frame);
}

void open_page(struct ulpf_frame *frame)
{
	if (set(the_space, (void *)(frame->addr & ~(PAGE - 1)), PAGE, ULPF_RW))
		_exit(2);
}

/* Registers as entry has pushed them below the frame. */
static uint64_t *saved(struct ulpf_frame *frame, int from_top)
{
	return (uint64_t *)frame - 1 - from_top;
}

void store_byte(struct ulpf_frame *frame)
{
	the_space->alias[(char *)frame->addr - the_space->guarded] = (char)*saved(frame, 3);	/* rsi */
	frame->ip += 3;
}

void load_byte(struct ulpf_frame *frame)
{
	*(char *)saved(frame, 0) = the_space->alias[(char *)frame->addr - the_space->guarded];	/* al */
	frame->ip += 2;
}

int device(void)
{
	int fd = open(ULPF_DEVICE, O_RDWR | O_CLOEXEC);

	EXPECT(fd >= 0);
	return fd;
}

struct space *space_make(size_t pages)
{
	struct space *space = malloc(sizeof(*space));

	space->fd = device();
	space->size = pages * PAGE;
	space->guarded = mmap(NULL, space->size, PROT_READ | PROT_WRITE, MAP_SHARED, space->fd, ULPF_MAP_GUARD);
	EXPECT(space->guarded != MAP_FAILED);
	space->alias = mmap(NULL, space->size, PROT_READ | PROT_WRITE, MAP_SHARED, space->fd, ULPF_MAP_ALIAS);
	EXPECT(space->alias != MAP_FAILED);
	the_space = space;
	return space;
}

struct space *space_closed(size_t pages)
{
	struct space *space = space_make(pages);

	EXPECT_EQ(handler(space, entry, 0), 0);
	EXPECT_EQ(set(space, space->guarded, space->size, ULPF_RO), 0);
	on_fault = store_byte;
	return space;
}

int handler(struct space *space, void *at, uint32_t flags)
{
	struct ulpf_handler arg = {
		.size = sizeof(arg), .flags = flags, .entry = (uintptr_t)at, .cookie = at ? (uintptr_t)space : 0,
	};

	return ioctl(space->fd, ULPF_HANDLER, &arg);
}

int apply(struct space *space, uint32_t op, const void *addr, size_t length, uint64_t arg)
{
	struct ulpf_op one = { .op = op, .addr = (uintptr_t)addr, .length = length, .arg = arg };

	return ioctl(space->fd, ULPF_APPLY, &one);
}

int set(struct space *space, const void *addr, size_t length, unsigned int permission)
{
	return apply(space, ULPF_OP_SET, addr, length, permission);
}

int ring(struct space *space, uint32_t records, uint32_t watermark, uint32_t latency_us)
{
	struct ulpf_ring arg = {
		.size = sizeof(arg), .records = records, .watermark = watermark, .latency_us = latency_us,
	};

	return ioctl(space->fd, ULPF_RING, &arg);
}

/* Reads the events that are there, without waiting; returns how many. */
ssize_t events(struct space *space, struct ulpf_event *event, size_t count)
{
	int flags = fcntl(space->fd, F_GETFL);
	ssize_t got;

	fcntl(space->fd, F_SETFL, flags | O_NONBLOCK);
	got = read(space->fd, event, count * sizeof(*event));
	fcntl(space->fd, F_SETFL, flags);
	if (got < 0 && errno == EAGAIN)
		return 0;
	EXPECT(got >= 0 && got % sizeof(*event) == 0);
	return got / sizeof(*event);
}

struct ulpf_counts counts(struct space *space)
{
	struct ulpf_counts counts = { .size = sizeof(counts) };

	EXPECT_EQ(ioctl(space->fd, ULPF_COUNTS, &counts), 0);
	return counts;
}

struct ulpf_page lookup(struct space *space, const void *addr)
{
	struct ulpf_page page = { .size = sizeof(page), .addr = (uintptr_t)addr };

	EXPECT_EQ(ioctl(space->fd, ULPF_LOOKUP, &page), 0);
	return page;
}

int in_child(test_fn *run)
{
	int status;
	pid_t pid = fork();

	EXPECT(pid >= 0);
	if (!pid) {
		run();
		_exit(0);
	}
	EXPECT_EQ(waitpid(pid, &status, 0), pid);
	return status;
}

static struct test {
	const char *name;
	test_fn *run;
} tests[256];
static int count;

void test_add(const char *name, test_fn *run)
{
	tests[count++] = (struct test){ name, run };
}

void test_note(const char *file, int line, const char *format, ...)
{
	char text[512];
	va_list args;
	int length;

	va_start(args, format);
	length = snprintf(text, sizeof(text), "# %s:%d: ", file, line);
	vsnprintf(text + length, sizeof(text) - length - 1, format, args);
	va_end(args);
	strcat(text, "\n");
	if (write(1, text, strlen(text)) < 0)
		_exit(1);
}

bool file_set(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
	bool well = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);

	close(fd);
	return well;
}

/* Factor by which this kernel is slower than usual (ulpf.slow=). */
static int slow(void)
{
	char text[4096] = "", *at;
	int fd = open("/proc/cmdline", O_RDONLY);

	if (fd < 0 || read(fd, text, sizeof(text) - 1) < 0)
		return 1;
	close(fd);
	at = strstr(text, "ulpf.slow=");
	return at ? atoi(at + strlen("ulpf.slow=")) : 1;
}

int main(int argc, char **argv)
{
	int i, failed = 0, limit = LIMIT * slow();

	printf("KTAP version 1\n1..%d\n", count);
	for (i = 0; i < count; i++) {
		int status;
		pid_t pid;

		if (argc > 1 && strcmp(argv[1], tests[i].name))
			continue;
		fflush(stdout);
		pid = fork();
		if (!pid) {
			alarm(limit);
			setpgid(0, 0);
			tests[i].run();
			_exit(0);
		}
		waitpid(pid, &status, 0);
		kill(-pid, SIGKILL);
		if (status == SKIPPED << 8) {
			printf("ok %d %s # SKIP\n", i + 1, tests[i].name);
		} else if (status) {
			printf("# status 0x%x\nnot ok %d %s\n", status, i + 1, tests[i].name);
			failed++;
		} else {
			printf("ok %d %s\n", i + 1, tests[i].name);
		}
	}
	return failed != 0;
}
