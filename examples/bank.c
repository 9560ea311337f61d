/* Three tellers move money between accounts; now and then one rounds, and the sum is no longer what it was.
 * Goes on for a while: something to look at with `ulpf top`.
 *
 *   bank [SECONDS [MICROSECONDS BETWEEN TRANSFERS]]     (0: as fast as they can) */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ACCOUNTS = 16, TELLERS = 3 };

struct bank {
	long accounts[ACCOUNTS];
	long transfers;
	long fees;
	char *busiest;
};

struct bank bank;
long audits;
static volatile int closed;
static long pause_us = 2000;

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

static void nap(long us)
{
	struct timespec time = { us / 1000000, us % 1000000 * 1000 };

	if (us)
		nanosleep(&time, NULL);
}

__attribute__((noinline)) static void transfer(int from, int to, long amount)
{
	bank.accounts[from] -= amount;
	bank.accounts[to] += amount;
	__atomic_add_fetch(&bank.transfers, 1, __ATOMIC_RELAXED);
}

__attribute__((noinline)) static void charge(int account)
{
	bank.accounts[account] -= 1;
	bank.fees += 1;
}

static void *teller(void *argument)
{
	unsigned seed = 17 + (unsigned)(long)argument;

	for (long n = 1; !closed; n++) {
		seed = seed * 1103515245 + 12345;
		transfer(seed >> 16 & 15, seed >> 20 & 15, 1 + (seed >> 24 & 63));
		if (n % 50 == 0)
			charge(seed >> 8 & 15);
		nap(pause_us);
	}
	return NULL;
}

__attribute__((noinline)) static long audit(void)
{
	long sum = 0;

	for (int i = 0; i < ACCOUNTS; i++)
		sum += bank.accounts[i];
	audits++;
	return sum;
}

int main(int argc, char **argv)
{
	static const char *const names[TELLERS] = { "anna", "ben", "carla" };
	pthread_t tellers[TELLERS];
	double seconds = argc > 1 ? atof(argv[1]) : 60;
	long sum = 0;

	if (argc > 2)
		pause_us = atol(argv[2]);
	for (int i = 0; i < ACCOUNTS; i++)
		bank.accounts[i] = 1000;
	ready();
	for (long i = 0; i < TELLERS; i++) {
		pthread_create(&tellers[i], NULL, teller, (void *)i);
		pthread_setname_np(tellers[i], names[i]);
	}
	for (int i = 0; i < seconds * 10; i++) {
		nap(100000);
		sum = audit();
	}
	closed = 1;
	for (int i = 0; i < TELLERS; i++)
		pthread_join(tellers[i], NULL);
	printf("bank: %s\n", sum == 1000 * ACCOUNTS ? "the sum is right" : "money is missing");
	return 0;
}
