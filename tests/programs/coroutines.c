/* Coroutines whose stacks are blocks of the heap. They call, recurse, sort, copy and jump out of frames, and keep arrays,
 * vectors and numbers of the x87 on their stacks. In between they hand over to one another. Prints their results;
 * `coroutines ROUNDS`. */
#include <alloca.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define COUNT 3
#define STACK 16384

/* The stacks. */
unsigned char *blocks[COUNT];

static ucontext_t contexts[COUNT], home;
static long rounds = 2;
static uint64_t sums[COUNT];

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

static void hand_over(int from)
{
	swapcontext(&contexts[from], &contexts[(from + 1) % COUNT]);
}

__attribute__((noinline)) static uint64_t recurse(int n, int self)
{
	if (n == 3)
		hand_over(self);
	return n < 2 ? (uint64_t)n : recurse(n - 1, self) + recurse(n - 2, self);
}

/* (The C library's functions keep a secret of the process on the stack: its canary, or the mangled target of longjmp.
 * Only plain copies are used here, because the contents would differ from run to run.) */
__attribute__((noinline)) static int by_value(const void *a, const void *b)
{
	short x = *(const short *)a, y = *(const short *)b;
	return x < y ? -1 : x > y;
}

__attribute__((noinline)) static void insert(short *numbers, int count, int (*compare)(const void *, const void *))
{
	short last = numbers[count - 1];
	int n = count - 1;
	if (n > 1)
		insert(numbers, n, compare);
	for (; n > 0 && compare(&numbers[n - 1], &last) > 0; n--)
		numbers[n] = numbers[n - 1];
	numbers[n] = last;
}

__attribute__((noinline)) static uint64_t sort(int round)
{
	short numbers[20];
	for (int n = 0; n < 20; n++)
		numbers[n] = (short)(n * 7919 + round * 31);
	insert(numbers, 20, by_value);
	return (uint64_t)(numbers[0] + 3 * numbers[19]);
}

__attribute__((noinline)) static uint64_t text(int round)
{
	size_t len = 64 + (size_t)round % 50;
	char *line = alloca(len), copy[160];
	memset(line, 'a' + round % 26, len);
	line[len - 1] = 0;
	memset(copy, 'x', sizeof copy);
	memcpy(copy + round % 17, line, strlen(line));
	return strlen(line) + (uint64_t)copy[20] + (uint64_t)copy[159];
}

/* Passed and returned as a whole, on the stack. */
struct wide {
	double d[8];
};

__attribute__((noinline)) static struct wide scaled(struct wide w, long double by)
{
	volatile long double kept = by;
	for (int n = 0; n < 8; n++)
		w.d[n] = (double)(w.d[n] * kept);
	return w;
}

__attribute__((noinline)) static void leave(void **to, volatile int *depth)
{
	if (*depth < 0)
		return;
	if (--*depth)
		leave(to, depth);
	__builtin_longjmp(to, 1);
}

__attribute__((noinline)) static uint64_t jump(int round)
{
	void *here[5];
	volatile int depth = 1 + round % 5;
	volatile uint64_t before = 17;
	if (!__builtin_setjmp(here)) {
		before += 4;
		leave(here, &depth);
	}
	return before;
}

static void work(int self)
{
	for (int round = 0; round < rounds; round++) {
		struct wide w = {{1, 2, 3, 4, 5, 6, 7, round}};
		sums[self] += recurse(5 + (round + self) % 3, self);
		sums[self] += sort(round);
		hand_over(self);
		sums[self] += text(round);
		w = scaled(w, 1.5L);
		hand_over(self);
		sums[self] += (uint64_t)(w.d[0] * 2 + w.d[7]) + jump(round);
	}
	/* The first coroutine that ends ends them all. */
}

int main(int argc, char **argv)
{
	if (argc > 1)
		rounds = atol(argv[1]);
	for (int n = 0; n < COUNT; n++) {
		blocks[n] = malloc(STACK);
		memset(blocks[n], 0, STACK);
		getcontext(&contexts[n]);
		contexts[n].uc_stack.ss_sp = blocks[n];
		contexts[n].uc_stack.ss_size = STACK;
		contexts[n].uc_link = &home;
		makecontext(&contexts[n], (void (*)(void))work, 1, n);
	}
	ready();
	swapcontext(&home, &contexts[0]);
	printf("sums %lu %lu %lu\n", sums[0], sums[1], sums[2]);
	return 0;
}
