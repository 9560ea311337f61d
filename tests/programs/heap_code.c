/* Calls about memory in which code of the C library lies, or about all memory there is (`heap_code WHAT`); blocks before and
   after, and one store beside the last of them. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PROT (PROT_READ | PROT_EXEC)

static void blocks(int n)
{
	for (int i = 1; i <= n; i++) {
		char *block = malloc(i * 10);
		memset(block, 1, i * 10);
		block = realloc(block, i * 20);
		if (i % 8)
			free(block);
	}
}

#define STRINGS 40
static char *string[STRINGS];

static void allocate_strings(void)
{
	for (int n = 0; n < STRINGS; n++) {
		string[n] = calloc(n + 1, 1);
		memset(string[n], 'a', n);
	}
}

/* The C library reads vectors, which reach over the ends of strings. It does so before the program allocates again. */
static void compare_strings(void)
{
	static char page[8192] __attribute__((aligned(4096)));
	int (*volatile compare)(const char *, const char *) = strcmp;
	for (int n = 1; n < STRINGS; n++) {
		for (int at = 4096 - 80; at < 4096; at += 3) {
			memset(page, 0, sizeof page);
			memset(page + at, 'a', n + 3);
			if (compare(page + at, string[n]) <= 0)
				abort();
		}
	}
}

static int shared(int apart)
{
	int id = shmget(IPC_PRIVATE, 8192, 0600 | IPC_CREAT);
	char *at = apart ? mmap(NULL, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : NULL;
	at = shmat(id, at, apart ? SHM_REMAP : 0);
	at[0] = 1;
	shmctl(id, IPC_RMID, NULL);
	return shmdt(at);
}

static int grows(int flags)
{
	char *at = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	at = mremap(at, 1 << 20, 8 << 20, flags);
	if (at == MAP_FAILED)
		return -1;
	at[(8 << 20) - 1] = 1;
	return 0;
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	char *page = (char *)((uintptr_t)malloc & ~4095UL);
	int result = -1;
	blocks(20);
	allocate_strings();
	if (!strcmp(what, "shmdt")) result = shared(0);
	if (!strcmp(what, "shmat")) result = shared(1);
	if (!strcmp(what, "mremap")) result = grows(MREMAP_MAYMOVE);
	if (!strcmp(what, "mprotect")) result = mprotect(page, 8192, PROT);
	if (!strcmp(what, "writable")) result = mprotect(page, 8192, PROT | PROT_WRITE);
	if (!strcmp(what, "pkey_mprotect")) result = syscall(SYS_pkey_mprotect, page, 8192, PROT, -1);
	if (!strcmp(what, "dontfork")) result = madvise(page, 8192, MADV_DONTFORK);
	if (!strcmp(what, "dofork")) result = madvise(page, 8192, MADV_DOFORK);
	if (!strcmp(what, "dontneed")) result = madvise(page, 8192, MADV_DONTNEED);
	if (!strcmp(what, "populate")) result = madvise(page, 8192, 22 /* MADV_POPULATE_READ */);
	if (!strcmp(what, "mlock")) result = mlock(page, 8192);
	if (!strcmp(what, "now")) result = mlockall(MCL_CURRENT);
	if (!strcmp(what, "future")) result = mlockall(MCL_FUTURE);
	if (!strcmp(what, "both")) result = mlockall(MCL_CURRENT | MCL_FUTURE);
	if (result) {
		perror(what);
		return 1;
	}
	compare_strings();
	blocks(400);
	volatile char *last = malloc(10);
	last[10] = 1;
	puts("fine");
	return 0;
}
