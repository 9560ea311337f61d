// Code that changes while it runs, by whatever way, and what a page's protection forbids.
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096
#define ANONYMOUS (MAP_PRIVATE | MAP_ANONYMOUS)

static int failures;

static void expect(const char *what, int got, int wanted)
{
	if (got != wanted) {
		printf("%s: %d, not %d\n", what, got, wanted);
		failures++;
	}
}

static int run(void *at)
{
	return ((int (*)(void))at)();
}

// mov $n, %eax; ret
static unsigned char returns[] = { 0xb8, 0, 0, 0, 0, 0xc3 };

static void changes(unsigned char *p)
{
	unsigned char *at = p + 100;
	int fds[2];

	for (int n = 0; n < 100; n++) {
		returns[1] = n;
		memcpy(at, returns, sizeof returns);
		expect("a copy", run(at), n);
		*(volatile unsigned char *)(at + 1) = n + 1;
		expect("a byte", run(at), n + 1);
		void *to = at, *from = returns;
		size_t count = sizeof returns;
		asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(count) : : "memory");
		expect("rep movsb", run(at), n);
		memcpy(p + 2 * PAGE - 3, returns, sizeof returns);
		expect("on two pages", run(p + 2 * PAGE - 3), n);
	}
	if (pipe(fds))
		failures++;
	for (int n = 0; n < 100; n++) {
		returns[1] = n;
		if (write(fds[1], returns, sizeof returns) != sizeof returns || read(fds[0], at, sizeof returns) != sizeof returns)
			failures++;
		expect("a system call", run(at), n);
	}
	for (int n = 0; n < 50; n++) {
		mprotect(p, PAGE, PROT_READ | PROT_WRITE);
		at[1] = n;
		mprotect(p, PAGE, PROT_READ | PROT_EXEC);
		expect("writable or executable", run(at), n);
	}
	for (int n = 0; n < 50; n++) {
		mmap(p, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, ANONYMOUS | MAP_FIXED, -1, 0);
		returns[1] = n;
		memcpy(at, returns, sizeof returns);
		expect("another mapping", run(at), n);
	}
}

static void itself(unsigned char *p)
{
	// movb $n, the next instruction's operand; mov $1, %eax; ret
	static unsigned char next[] = { 0xc6, 0x05, 1, 0, 0, 0, 0, 0xb8, 1, 0, 0, 0, 0xc3 };
	// xor %eax, %eax; again: add $1, %eax; movb $5, again + 2; cmp $6, %eax; jl again; ret
	static const unsigned char loop[] = {
		0x31, 0xc0, 0x83, 0xc0, 1, 0xc6, 0x05, 0xf8, 0xff, 0xff, 0xff, 5, 0x83, 0xf8, 6, 0x7c, 0xf1, 0xc3,
	};

	for (int n = 2; n < 50; n++) {
		next[6] = n;
		memcpy(p, next, sizeof next);
		expect("the next instruction", run(p), n);
	}
	memcpy(p + PAGE, loop, sizeof loop);
	expect("a loop's beginning", run(p + PAGE), 6);
}

static sigjmp_buf before;

static void caught(int number)
{
	siglongjmp(before, number);
}

// 4, 2, 1: a load, a store, a jump to it is a SIGSEGV.
static int refused(volatile unsigned char *p)
{
	volatile int bits = 0;

	if (sigsetjmp(before, 1))
		bits |= 4;
	else
		(void)*p;
	if (sigsetjmp(before, 1))
		bits |= 2;
	else
		p[1] = 1;
	if (sigsetjmp(before, 1))
		bits |= 1;
	else
		run((void *)(p + 8));
	return bits;
}

static void protections(unsigned char *p)
{
	static const int all[][2] = { { 0, 7 }, { 1, 3 }, { 3, 1 }, { 7, 0 }, { 5, 2 }, { 1, 3 }, { 0, 7 }, { 3, 1 }, { 5, 2 } };

	signal(SIGSEGV, caught);
	memset(p, 0xc3, 3 * PAGE);
	for (unsigned i = 0; i < sizeof all / sizeof *all; i++) {
		mprotect(p + PAGE, PAGE, all[i][0]);
		expect("a page of three", refused(p + PAGE), all[i][1]);
		mprotect(p, 3 * PAGE, all[i][0]);
		expect("all three", refused(p + PAGE), all[i][1]);
	}
	munmap(p + PAGE, PAGE);
	expect("nothing", refused(p + PAGE), 7);
}

int main(void)
{
	unsigned char *p = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, ANONYMOUS, -1, 0);

	changes(p);
	itself(p + 2 * PAGE);
	p = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, ANONYMOUS, -1, 0);
	protections(p);
	puts(failures ? "code: failed" : "code: done");
	return failures != 0;
}
