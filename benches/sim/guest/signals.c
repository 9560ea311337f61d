// SPDX-License-Identifier: GPL-2.0-or-later
// Runs natively, not on the machine: measures the steps of the thesis's Table 4.1 with signals, on
// this processor and kernel. Prints cycles of the time-stamp counter, medians of a thousand.
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

static char *page;
static uint64_t entered, allowed, left;

static inline uint64_t cycles(void)
{
	uint32_t low, high;

	asm volatile("lfence; rdtsc; lfence" : "=a"(low), "=d"(high) :: "memory");
	return (uint64_t)high << 32 | low;
}

static void handle(int number, siginfo_t *info, void *context)
{
	(void)number, (void)info, (void)context;
	entered = cycles();
	mprotect(page, 4096, PROT_READ | PROT_WRITE);
	allowed = cycles();
	left = cycles();
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

enum { N = 1000 };
static uint64_t taken[4][N];

int main(void)
{
	struct sigaction action = { .sa_sigaction = handle, .sa_flags = SA_SIGINFO };

	page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	sigaction(SIGSEGV, &action, NULL);
	for (int i = 0; i < N; i++) {
		uint64_t start = cycles(), done, closed;

		*(volatile char *)page = 1;
		done = cycles();
		mprotect(page, 4096, PROT_READ);
		closed = cycles();
		taken[0][i] = entered - start;
		taken[1][i] = allowed - entered;
		taken[2][i] = done - left;
		taken[3][i] = closed - done;
	}
	for (int s = 0; s < 4; s++) {
		qsort(taken[s], N, sizeof taken[s][0], compare);
		printf("%lu ", taken[s][N / 2]);
	}
	printf("\n");
	return 0;
}
