/* Watched memory that goes away and comes back: munmap, mmap over it, madvise, mremap, io_uring. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define AT ((char *)0x10000000)
#define LEN 16384
long *number = (long *)(AT + 4096 + 64);

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

static char *map(void)
{
	return mmap(AT, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}

int main(int argc, char **argv)
{
	long sum = 0;

	if (map() != AT)
		return 2;
	*number = 1;
	ready();
	munmap(AT, LEN);
	if (argc > 1 && !strcmp(argv[1], "code")) {
		mmap(AT, LEN, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
		return 0;
	}
	map();
	sum = sum * 10 + *number; /* 0 */
	*number = 2;
	map(); /* over it */
	sum = sum * 10 + *number; /* 0 */
	*number = 3;
	madvise(AT, LEN, MADV_DONTNEED);
	sum = sum * 10 + *number; /* 0 */
	*number = 4;
	mprotect(AT, LEN, PROT_READ);
	sum = sum * 10 + *number; /* 4 */
	mprotect(AT, LEN, PROT_READ | PROT_WRITE);
	*number = 5;
	char *elsewhere = mremap(AT, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, AT + 0x1000000);
	sum = sum * 10 + *(long *)(elsewhere + 4096 + 64); /* 5 */
	mremap(elsewhere, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, AT);
	*number = 6;
	sum = sum * 10 + *number; /* 6 */
	long ring = syscall(SYS_io_uring_setup, 1, AT);
	syscall(SYS_io_uring_setup, 1, AT);
	munmap(AT, LEN);
	printf("vanish: %ld, io_uring %s\n", sum, ring < 0 ? "refused" : "there");
	return 0;
}
