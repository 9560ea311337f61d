/* Stores that lie so close that one jump covers two of them: neighbours ROUNDS [grow]
 *
 * It is linked to lie where programs did before they were position-independent: within reach of a jump
 * from there is little but the way of the program break. "grow" goes all that way, half-way through the
 * rounds.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PAIRS 1024

_Alignas(4096) volatile int pairs[PAIRS + 1][2];

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("" ::: "memory");
}

/* Both fields of each pair. */
__attribute__((noinline)) static void fill(int value)
{
	volatile int(*at)[2] = pairs;

	__asm__ volatile("1:\n\t"
			 "movl %1, (%0)\n\t"
			 "movl %1, 4(%0)\n\t"
			 "addq $8, %0\n\t"
			 "cmpq %2, %0\n\t"
			 "jb 1b"
			 : "+&r"(at)
			 : "r"(value), "r"(pairs + PAIRS)
			 : "memory");
}

/* The second field, and the next pair's first. For the jump of such a store few places will do. */
__attribute__((noinline)) static void fill_far(int value)
{
	volatile int(*at)[2] = pairs;

	__asm__ volatile("1:\n\t"
			 "movq %1, 4(%0)\n\t"
			 "incl %%ecx\n\t"
			 "addq $8, %0\n\t"
			 "cmpq %2, %0\n\t"
			 "jb 1b"
			 : "+&r"(at)
			 : "r"((long)value), "r"(pairs + PAIRS)
			 : "memory", "ecx");
}

static long grown(void)
{
	long step = 256L << 20, all = 0;

	while (all < 3L << 30 && sbrk(step) != (void *)-1)
		all += step;
	return all >> 20;
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 100;
	long sum = 0, more = 0;

	ready();
	for (int n = 0; n < rounds; n++) {
		if (n == rounds / 2 && argc > 2 && !strcmp(argv[2], "grow"))
			more = grown();
		fill(n);
		fill_far(n);
	}
	for (int n = 0; n < PAIRS; n++)
		sum += pairs[n][0] + pairs[n][1];
	printf("neighbours: sum %ld, %ld MiB more\n", sum, more);
	return 0;
}
