// Reserves the addresses at which ulpf takes its memory, as InnoDB does for a buffer pool of up to 8 TiB, and goes on
// to use its heap in four threads. "overlaid some" leaves a few stretches of these addresses free.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define FLAGS (MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE)
static volatile long rounds[4];

static void *work(void *number)
{
	long n = (long)number;
	for (;;) {
		size_t len = 16 + rand() % 300000;
		char *block = malloc(len);
		memset(block, (int)n, len);
		for (size_t at = 0; at < len; at += 4096)
			if (block[at] != (char)n)
				abort();
		free(block);
		rounds[n]++;
		usleep(2000);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	const uintptr_t from = 0x7e8000000000, to = 0x7ef000000000;
	int some = argc > 1 && !strcmp(argv[1], "some");
	uintptr_t step = (uintptr_t)1 << 30;
	for (uintptr_t at = from; at < to; at += step) {
		size_t len = some && at / step % 16 == 0 ? step - (64 << 20) : step;
		if (mmap((void *)at, len, PROT_NONE, FLAGS | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED)
			return 3;
	}
	char *next = mmap(NULL, (size_t)8 << 40, PROT_NONE, FLAGS, -1, 0);
	if (next == MAP_FAILED || mprotect(next, 1 << 20, PROT_READ | PROT_WRITE))
		return 4;
	pthread_t thread;
	for (long n = 0; n < 4; n++)
		if (pthread_create(&thread, NULL, work, (void *)n))
			return 5;
	for (long before = 0;; before = rounds[0]) {
		for (int n = 0; n < 4; n++)
			while (rounds[n] < before + 10)
				usleep(1000);
		printf("%ld\n", rounds[0]);
		fflush(stdout);
	}
}
