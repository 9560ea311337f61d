/* The price of a system call: each goes through the watched program's system-call layer. */
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

_Alignas(4096) long guarded[512];

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

int main(void)
{
	enum { COUNT = 200000 };
	struct timespec start, end;

	guarded[0] = 1;
	ready();
	clock_gettime(CLOCK_MONOTONIC, &start);
	for (int i = 0; i < COUNT; i++)
		syscall(SYS_getppid);
	clock_gettime(CLOCK_MONOTONIC, &end);
	printf("ns %.2f\n", ((end.tv_sec - start.tv_sec) * 1e9 + end.tv_nsec - start.tv_nsec) / COUNT);
	return 0;
}
