/* Threads that race for the same bytes: MODE THREADS STORES. The output is the same in every run. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct {
	unsigned long number; /* used by most modes */
	unsigned long wide[2] __attribute__((aligned(16)));
	unsigned char text[64];
} cell __attribute__((aligned(4096)));

static const char *mode;
static int stores;
static int file; /* eight bytes that grow */
static pthread_barrier_t together;

static void *race(void *arg)
{
	unsigned long who = (unsigned long)arg;
	unsigned char source[24];

	pthread_barrier_wait(&together);
	for (int i = 1; i <= stores; i++) {
		unsigned long value = who << 32 | (unsigned)i;

		if (!strcmp(mode, "locked")) {
			__asm__ volatile("lock addq $1, %0" : "+m"(cell.number));
		} else if (!strcmp(mode, "plain")) {
			__asm__ volatile("movq %1, %0" : "=m"(cell.number) : "r"(value));
		} else if (!strcmp(mode, "unlocked")) {
			__asm__ volatile("addq $1, %0" : "+m"(cell.number));
		} else if (!strcmp(mode, "exchange")) {
			__asm__ volatile("xchgq %1, %0" : "+m"(cell.number), "+r"(value));
		} else if (!strcmp(mode, "halves")) {
			/* An upper and a lower half, and both. */
			if (who % 3 == 0)
				*(volatile unsigned *)&cell.number = i;
			else if (who % 3 == 1)
				((volatile unsigned *)&cell.number)[1] = i;
			else
				*(volatile unsigned long *)&cell.number = value;
		} else if (!strcmp(mode, "vector")) {
			__asm__ volatile("movq %1, %%xmm0; punpcklqdq %%xmm0, %%xmm0; movdqa %%xmm0, %0"
					 : "=m"(cell.wide)
					 : "r"(value)
					 : "xmm0");
		} else if (!strcmp(mode, "kernel")) {
			/* Every third thread has the kernel write. */
			if (who % 3 == 1) {
				if (pwrite(file, &value, 8, 0) != 8 || pread(file, &cell.number, 8, 0) != 8)
					abort();
			} else {
				__asm__ volatile("lock addq $1, %0" : "+m"(cell.number));
			}
		} else {
			void *to = cell.text, *from = source;
			size_t n = sizeof source;

			memset(source, (int)(who * 50 + i % 50), sizeof source);
			__asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(n) : : "memory");
		}
	}
	return NULL;
}

int main(int argc, char **argv)
{
	int threads = argc > 2 ? atoi(argv[2]) : 4;
	pthread_t thread[64];

	mode = argc > 1 ? argv[1] : "locked";
	stores = argc > 3 ? atoi(argv[3]) : 1000;
	file = memfd_create("values", 0);
	pthread_barrier_init(&together, NULL, threads);
	for (long i = 0; i < threads; i++)
		pthread_create(&thread[i], NULL, race, (void *)(i + 1));
	for (int i = 0; i < threads; i++)
		pthread_join(thread[i], NULL);
	if (!strcmp(mode, "locked"))
		printf("chain: %lu\n", cell.number);
	else
		puts("chain: done");
	return 0;
}
