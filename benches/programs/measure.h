/* Shared by the programs of `ulpf-bench`: the function where watches are set, the clock, the line of results. */
#include <stdio.h>
#include <time.h>
#include <x86intrin.h>

struct moment {
	double ns;
	unsigned long long cycles;
};

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

static inline struct moment moment(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (struct moment){t.tv_sec * 1e9 + t.tv_nsec, __rdtsc()};
}

/* bench: ns=0.250 cycles=0.700: what one of `count` took since `start`. */
static inline void report(struct moment start, double count)
{
	struct moment end = moment();

	printf("bench: ns=%.3f cycles=%.3f\n", (end.ns - start.ns) / count, (end.cycles - start.cycles) / count);
}
