/* Thread state that a program may use for itself: the base of gs (by arch_prctl and by wrgsbase), and the time-stamp counter
   forbidden (prctl(PR_SET_TSC)). */
#define _GNU_SOURCE
#include <asm/prctl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

long counter;
static long *numbers;
static sigjmp_buf back;

static void caught(int signo, siginfo_t *info, void *context)
{
	(void)context;
	printf("signal %d, code %d\n", signo, info->si_code);
	siglongjmp(back, 1);
}

/* Often enough that the stores are patched. */
static void work(void)
{
	for (int i = 0; i < 20000; i++) {
		numbers[i % 512]++;
		counter++;
	}
}

static long by_gs(void)
{
	long value;
	__asm__ volatile("mov %%gs:0, %0" : "=r"(value));
	return value;
}

static unsigned long long ticks(void)
{
	unsigned low, high;
	__asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
	return (unsigned long long)high << 32 | low;
}

static void time_stamps(const char *what)
{
	if (!sigsetjmp(back, 1))
		printf("%s: %s\n", what, ticks() ? "read" : "zero");
	else
		printf("%s: forbidden\n", what);
}

static void *forbidden(void *unused)
{
	(void)unused;
	int mode = 0;
	printf("PR_SET_TSC %d", prctl(PR_SET_TSC, PR_TSC_SIGSEGV));
	printf(", %d", prctl(PR_GET_TSC, &mode));
	printf(", mode %d\n", mode);
	fflush(stdout);
	work();
	for (int i = 0; i < 300; i++)
		getppid();
	int pipes[2];
	if (pipe(pipes))
		return NULL;
	for (int i = 0; i < 300; i++)
		if (write(pipes[1], numbers, 8) != 8 || read(pipes[0], numbers, 8) != 8)
			puts("lost");
	time_stamps("forbidden");
	printf("PR_SET_TSC %d\n", prctl(PR_SET_TSC, PR_TSC_ENABLE));
	work();
	time_stamps("allowed");
	return NULL;
}

static void *with_gs(void *unused)
{
	(void)unused;
	static long words[2] = {11, 22};
	unsigned long base = 0;
	work();
	printf("ARCH_SET_GS %ld", syscall(SYS_arch_prctl, ARCH_SET_GS, &words[0]));
	printf(", %ld", syscall(SYS_arch_prctl, ARCH_GET_GS, &base));
	printf(", %d, %ld\n", base == (unsigned long)words, by_gs());
	work();
	printf("%ld\n", by_gs());
	return NULL;
}

static void *with_instruction(void *unused)
{
	(void)unused;
	static long words[2] = {33, 44};
	unsigned long base;
	if (!(getauxval(AT_HWCAP2) & 2)) {
		puts("wrgsbase 1, 33, 1");
		return NULL;
	}
	work();
	__asm__ volatile("wrgsbase %0" : : "r"(words));
	work();
	__asm__ volatile("rdgsbase %0" : "=r"(base));
	printf("wrgsbase %d, %ld", base == (unsigned long)words, by_gs());
	work();
	__asm__ volatile("wrgsbase %0" : : "r"(0l));
	work();
	__asm__ volatile("rdgsbase %0" : "=r"(base));
	printf(", %d\n", base == 0);
	return NULL;
}

static void run(void *(*body)(void *))
{
	pthread_t thread;
	pthread_create(&thread, NULL, body, NULL);
	pthread_join(thread, NULL);
	fflush(stdout);
}

int main(int count, char **arguments)
{
	struct sigaction action = {.sa_sigaction = caught, .sa_flags = SA_SIGINFO};
	sigaction(SIGSEGV, &action, NULL);
	numbers = calloc(512, sizeof *numbers);
	const char *how = count > 1 ? arguments[1] : "all";
	if (strcmp(how, "gs"))
		run(forbidden);
	if (strcmp(how, "tsc")) {
		run(with_instruction);
		run(with_gs);
	}
	work();
	long sum = 0;
	for (int i = 0; i < 512; i++)
		sum += numbers[i];
	printf("counted %ld, %ld\n", counter, sum);
	return 0;
}
