/* Stores each byte of 256 pages, in address order: what a patch of a hot store saves.
 *
 *   sweep ROUNDS [HOW]     HOW: into  the loop jumps between the store and the instruction behind it
 *                               over  it jumps over every second store, to behind it
 *                               both  the same, and another store is what it jumps to
 *                               behind  it begins with the second of two stores, again and again
 *                               past  it increments, and every second turn jumps past the lock prefix
 *                               fs    it stores through fs, as to a thread's own variables
 *                               fork  a child sweeps, too, and looks at its own code
 *                               gs    the program takes gs for itself half-way
 *                               lock  it locks all its memory half-way
 *                               leave ever after it sweeps another block
 *                               hide  that, with code that can be executed, but not read
 */
#define _GNU_SOURCE
#include <asm/prctl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE (256 * 4096)
unsigned char *block, *other;
long rounds_done;

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

/* A store of two bytes with an increment behind it. */
__attribute__((noinline)) void fill(unsigned char *from, unsigned char *to, int value)
{
	__asm__ volatile("1:	mov	%b2, (%0)\n"
			 "	inc	%0\n"
			 "	cmp	%1, %0\n"
			 "	jne	1b"
			 : "+r"(from)
			 : "r"(to), "q"(value)
			 : "memory", "cc");
}

/* Each second turn enters behind the store, where a jump over it would have its middle. */
__attribute__((noinline)) void fill_half(unsigned char *from, unsigned char *to, int value)
{
	__asm__ volatile("1:	mov	%b2, (%0)\n"
			 "2:	inc	%0\n"
			 "	cmp	%1, %0\n"
			 "	je	3f\n"
			 "	test	$1, %b0\n"
			 "	je	1b\n"
			 "	jmp	2b\n"
			 "3:"
			 : "+q"(from)
			 : "r"(to), "q"(value)
			 : "memory", "cc");
}

/* A jump over the store leads to where the middle of a jump would be that takes the store's place. */
__attribute__((noinline)) void fill_odd(unsigned char *from, unsigned char *to, int value)
{
	__asm__ volatile("1:	test	$1, %b0\n"
			 "	je	2f\n"
			 "	mov	%b2, (%0)\n"
			 "2:	inc	%0\n"
			 "	cmp	%1, %0\n"
			 "	jne	1b"
			 : "+q"(from)
			 : "r"(to), "q"(value)
			 : "memory", "cc");
}

/* The same, with another store there. */
__attribute__((noinline)) void fill_both(unsigned char *from, unsigned char *to, int value)
{
	__asm__ volatile("1:	test	$1, %b0\n"
			 "	je	2f\n"
			 "	mov	%b2, (%0)\n"
			 "2:	mov	%b2, (%0)\n"
			 "	inc	%0\n"
			 "	cmp	%1, %0\n"
			 "	jne	1b"
			 : "+q"(from)
			 : "r"(to), "q"(value)
			 : "memory", "cc");
}

/* A loop that is entered behind the patched first store, and jumps back to it. */
__attribute__((noinline)) void fill_behind(unsigned char *from, unsigned char *to, int value)
{
	__asm__ volatile("	jmp	2f\n"
			 "1:	mov	%b2, (%0)\n"
			 "	inc	%0\n"
			 "2:	mov	%b2, (%0)\n"
			 "	inc	%0\n"
			 "	cmp	%1, %0\n"
			 "	jne	1b"
			 : "+q"(from)
			 : "r"(to), "q"(value)
			 : "memory", "cc");
}

/* As C libraries skip the prefix in a program of one thread. */
__attribute__((noinline)) void fill_past(unsigned char *from, unsigned char *to)
{
	__asm__ volatile("1:	test	$1, %b0\n"
			 "	je	2f\n"
			 "	lock\n"
			 "2:	incb	(%0)\n"
			 "	inc	%0\n"
			 "	cmp	%1, %0\n"
			 "	jne	1b"
			 : "+q"(from)
			 : "r"(to)
			 : "memory", "cc");
}

__attribute__((noinline)) void fill_fs(unsigned char *from, unsigned char *to, int value)
{
	unsigned char *base;

	__asm__ volatile("mov	%%fs:0, %2\n"
			 "	sub	%2, %0\n"
			 "	sub	%2, %1\n"
			 "1:	mov	%b3, %%fs:(%0)\n"
			 "	inc	%0\n"
			 "	cmp	%1, %0\n"
			 "	jne	1b"
			 : "+r"(from), "+r"(to), "=&r"(base)
			 : "q"(value)
			 : "memory", "cc");
}

static const void *of(const void *code)
{
	return (const void *)((unsigned long)code & -4096UL);
}

/* May the code be executed, and nothing else? */
static int is_hidden(const void *code)
{
	char line[512], wanted[32];
	int hidden = 0;
	FILE *maps = fopen("/proc/self/maps", "r");

	snprintf(wanted, sizeof(wanted), "%lx-", (unsigned long)of(code));
	while (maps && fgets(line, sizeof(line), maps))
		if (!strncmp(line, wanted, strlen(wanted)))
			hidden = strstr(line, " --xp ") != NULL;
	if (maps)
		fclose(maps);
	return hidden;
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 4, status = 0;
	const char *how = argc > 2 ? argv[2] : "";
	unsigned char code[64];
	unsigned long sum = 0;

	block = aligned_alloc(4096, SIZE);
	other = aligned_alloc(4096, SIZE);
	memset(block, 0, SIZE);
	memset(other, 0, SIZE);
	memcpy(code, (void *)fill, sizeof code);
	ready();
	if (!strcmp(how, "hide"))
		mprotect((void *)of((void *)fill), 4096, PROT_EXEC);
	for (int n = 1; n <= rounds; n++) {
		if (n > rounds / 2 && !strcmp(how, "gs") && syscall(SYS_arch_prctl, ARCH_SET_GS, code))
			return 2;
		if (n == rounds / 2 + 1 && !strcmp(how, "lock"))
			mlockall(MCL_CURRENT);
		if (n > 1 && (!strcmp(how, "leave") || !strcmp(how, "hide")))
			fill(other, other + SIZE, n);
		else if (!strcmp(how, "over"))
			fill_odd(block, block + SIZE, n);
		else if (!strcmp(how, "both"))
			fill_both(block, block + SIZE, n);
		else if (!strcmp(how, "behind"))
			for (int i = 0; i < SIZE; i += 3)
				fill_behind(block + i, block + (i + 3 < SIZE ? i + 3 : SIZE), n);
		else if (!strcmp(how, "past"))
			fill_past(block, block + SIZE);
		else if (!strcmp(how, "fs"))
			fill_fs(block, block + SIZE, n);
		else if (!strcmp(how, "into"))
			fill_half(block, block + SIZE, n);
		else
			fill(block, block + SIZE, n);
		rounds_done = n;
	}
	if (!strcmp(how, "fork")) {
		pid_t child = fork();
		if (child == 0) {
			fill(block, block + SIZE, 99);
			_exit(memcmp(code, (void *)fill, sizeof code) ? 1 : block[SIZE - 1]);
		}
		waitpid(child, &status, 0);
	}
	if (!strcmp(how, "gs")) {
		unsigned long base = 0;
		syscall(SYS_arch_prctl, ARCH_GET_GS, &base);
		status = base != (unsigned long)code;
	}
	if (!strcmp(how, "hide"))
		status = !is_hidden((void *)fill);
	for (int i = 0; i < SIZE; i++)
		sum = sum * 31 + block[i] + other[i];
	printf("sweep: sum %lx, status %x\n", sum, status);
	return 0;
}
