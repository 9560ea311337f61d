/* Stores, asks for more vector state than its processor has (AMX's tiles), and stores again. */
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ARCH_REQ_XCOMP_PERM 0x1023
#define TILES 18

volatile int a, page_mate;

int main(void)
{
	long granted;
	int i;

	for (i = 1; i <= 20; i++) {
		a = i;
		page_mate = i;
	}
	granted = syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILES);
	for (i = 21; i <= 40; i++) {
		a = i;
		page_mate = i;
	}
	printf("wider: %s\n", granted ? "refused" : "granted");
	return 0;
}
