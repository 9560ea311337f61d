/*
 * Threads that fault all the time, and go on: each fault has its address and its code, and nothing else is met.
 * Until its input ends; then it says what was wrong.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define THREADS 3

long counter;
static char *page;
static volatile int ends;
static __thread sigjmp_buf back;
static __thread int offset;
static int wrong;

static void on_fault(int number, siginfo_t *info, void *context)
{
	(void)context;
	if (number != SIGSEGV || info->si_code != SEGV_ACCERR || info->si_addr != page + offset)
		__atomic_fetch_add(&wrong, 1, __ATOMIC_SEQ_CST);
	siglongjmp(back, 1);
}

static void *faults(void *unused)
{
	(void)unused;
	while (!ends) {
		offset = (offset + 1) % 4096;
		if (!sigsetjmp(back, 1)) {
			((volatile char *)page)[offset] = 1;
			__atomic_fetch_add(&wrong, 1, __ATOMIC_SEQ_CST);
		}
	}
	return NULL;
}

int main(void)
{
	struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };
	pthread_t threads[THREADS];
	char byte;

	page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	sigaction(SIGSEGV, &action, NULL);
	for (int n = 0; n < THREADS; n++)
		pthread_create(&threads[n], NULL, faults, NULL);
	puts("ready");
	fflush(stdout);
	while (read(0, &byte, 1) == 1)
		counter++;
	ends = 1;
	for (int n = 0; n < THREADS; n++)
		pthread_join(threads[n], NULL);
	printf("wrong: %d\n", wrong);
	return 0;
}
