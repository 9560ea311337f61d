/* Code at the end of a large reserved address range, like V8's copy of its built-in functions. No address within reach of a
 * patch's jump is free. Afterwards, in a child and here, all of the range is still reserved: it cannot be read, and is
 * empty. Prints the number of its code's stores to `cells`. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define RESERVED (512ul << 20)
#define CODE 4096
#define PAGE 4096

uint64_t cells[512] __attribute__((aligned(4096)));

/* The store has four bytes: behind the jump's opcode, one of the jump stands where the next instruction begins. */
__asm__(".text\n.balign 4096\ncode: mov %rdx,(%rdi,%rsi,8)\ninc %rsi\nand $511,%esi\ndec %rcx\njne code\nret\n.balign 4096");
extern const unsigned char code[], __executable_start[];
typedef void function(uint64_t *, uint64_t, uint64_t, uint64_t);

static sigjmp_buf back;

static void fault(int signal)
{
	(void)signal;
	siglongjmp(back, 1);
}

static int is_as_it_was(unsigned char *reserved, size_t len)
{
	volatile long readable = 0, full = 0;

	signal(SIGSEGV, fault);
	for (volatile size_t at = 0; at < len; at += 64 * PAGE)
		if (!sigsetjmp(back, 1)) {
			(void)*(volatile unsigned char *)(reserved + at);
			readable++;
		}
	signal(SIGSEGV, SIG_DFL);
	if (mprotect(reserved, len, PROT_READ | PROT_WRITE)) {
		perror("mprotect");
		return 0;
	}
	for (size_t at = 0; at < len; at += 64 * PAGE)
		for (size_t n = 0; n < PAGE; n++)
			full += reserved[at + n] != 0;
	if (full || readable)
		fprintf(stderr, "%ld pages can be read, %ld bytes are not empty\n", readable, full);
	return !full && (readable == 0 || getenv("MAY_READ"));
}

int main(int argc, char **argv)
{
	long rounds = argc > 1 ? atol(argv[1]) : 1000, status = 0;
	int file = open("/proc/self/exe", O_RDONLY);
	unsigned char *all = mmap(0, RESERVED, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	unsigned char *end = all + RESERVED - CODE;

	if (file < 0 || all == MAP_FAILED ||
	    mmap(end, CODE, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, file, code - __executable_start) == MAP_FAILED)
		return 3;
	for (long r = 0; r < rounds; r++)
		((function *)end)(cells, 0, r, 512);
	pid_t child = fork();
	if (!child)
		_exit(!is_as_it_was(all, RESERVED - CODE));
	waitpid(child, (int *)&status, 0);
	if (status)
		printf("wrong: in the child\n");
	setenv("MAY_READ", "1", 1);
	if (!is_as_it_was(all, RESERVED - CODE))
		printf("wrong: here\n");
	((function *)end)(cells, 0, rounds, 512);
	printf("%ld\n", (rounds + 1) * 512);
	return 0;
}
