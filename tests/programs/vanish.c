/* Watched memory that goes away and comes back: munmap, mmap over it, madvise, mremap, io_uring. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
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

/* Calls that fail where memory may not be accessed. */
static int accessible(void)
{
	enum { POPULATE_READ = 22, POPULATE_WRITE, GUARD_INSTALL = 102, GUARD_REMOVE };
	int results[6];

	map();
	*number = 7;
	results[0] = mlock(AT, LEN);
	results[1] = mlock2(AT, LEN, 1 /* MLOCK_ONFAULT */);
	munlock(AT, LEN);
	results[2] = madvise(AT, LEN, POPULATE_READ);
	results[3] = madvise(AT, LEN, POPULATE_WRITE);
	results[4] = madvise(AT, 4096, GUARD_INSTALL);
	results[5] = madvise(AT, 4096, GUARD_REMOVE);
	*number += 1;
	for (int i = 0; i < 6; i++)
		printf("%d ", results[i]);
	printf("%ld\n", *number);
	return 0;
}

/* Rarer calls that bring, replace or discard memory. */
static int others(void)
{
	int segment = shmget(IPC_PRIVATE, LEN, 0600);
	char *other;

	if (shmat(segment, AT, 0) != AT)
		return 1;
	shmctl(segment, IPC_RMID, NULL);
	*number = 1;
	madvise(AT, LEN, MADV_REMOVE);
	mprotect(AT, LEN, PROT_NONE);
	shmdt(AT);
	mmap(AT, LEN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	syscall(SYS_pkey_mprotect, AT, LEN, PROT_READ | PROT_WRITE, -1);
	*number = 2;
	other = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	*(long *)(other + 4096 + 64) = 3;
	if (mremap(other, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, AT) != AT)
		return 2;
	*number += 1;
	printf("vanish: %ld\n", *number);
	return 0;
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
	if (argc > 1 && !strcmp(argv[1], "accessible"))
		return accessible();
	if (argc > 1 && !strcmp(argv[1], "others"))
		return others();
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
	((unsigned *)AT)[2] = 1u << 31; /* an unknown flag */
	long ring = syscall(SYS_io_uring_setup, 1, AT);
	syscall(SYS_io_uring_setup, 1, AT);
	munmap(AT, LEN);
	printf("vanish: %ld, io_uring %s\n", sum, ring < 0 ? "refused" : "there");
	return 0;
}
