// Pages that may only be read for a while: hot loads, stores that fault, accesses that cross into the page before or behind.
// Then they may be written again.
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE 4096
static _Alignas(PAGE) char pages[4 * PAGE];
static sigjmp_buf back;
static volatile int faults, elsewhere;
static volatile char *last;

static void fault(int sig, siginfo_t *info, void *context)
{
	(void)sig;
	(void)context;
	faults++;
	elsewhere += (char *)info->si_addr != (last > pages + PAGE ? last : pages + PAGE);
	siglongjmp(back, 1);
}

__attribute__((noinline)) static uint64_t load(const char *at)
{
	uint64_t value;
	__asm__ volatile("mov (%1), %0" : "=r"(value) : "r"(at) : "memory");
	return value;
}

__attribute__((noinline)) static void store(char *at, uint64_t value)
{
	last = at;
	if (!sigsetjmp(back, 0))
		__asm__ volatile("mov %0, (%1)" : : "r"(value), "r"(at) : "memory");
}

static uint64_t round_of(int n)
{
	uint64_t sum = 0;
	for (int i = 0; i < n; i++)
		for (int at = 0; at < 3 * PAGE; at += 1020)
			sum += load(pages + at);
	sum += load(pages + PAGE - 4) + load(pages + 2 * PAGE - 4) + load(pages + 3 * PAGE - 4);
	return sum;
}

int main(void)
{
	struct sigaction action = {.sa_sigaction = fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
	uint64_t sum = 0;
	sigaction(SIGSEGV, &action, NULL);
	for (int i = 0; i < 4 * PAGE; i++)
		pages[i] = (char)(i * 7);
	for (int turn = 0; turn < 3; turn++) {
		sum += round_of(2000);
		mprotect(pages + PAGE, 2 * PAGE, PROT_READ);
		sum += round_of(5000);
		for (int i = 0; i < 100; i++) {
			store(pages + PAGE + i * 8, 1);
			store(pages + PAGE - 4, i);
			store(pages + 3 * PAGE + 8, i);
			sum += load(pages + PAGE + i * 8);
		}
		mprotect(pages + PAGE, 2 * PAGE, PROT_READ | PROT_WRITE);
		for (int i = 0; i < 5000; i++) {
			store(pages + PAGE + i % 1000, i);
			store(pages + PAGE - 4, i);
		}
	}
	printf("%lx, %d faults, %d elsewhere\n", (unsigned long)sum, faults, elsewhere);
	return 0;
}
