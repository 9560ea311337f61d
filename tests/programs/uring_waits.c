/* Threads that wait for completions of an io_uring, in each way, while main uses the heap. A line says that they wait. */
#include <pthread.h>
#include <stdlib.h>

#include "rings.h"

int rounds;

static void *waits(void *unused)
{
	struct ring r;
	(void)unused;
	if (ring_open(&r, 0))
		exit(77);
	for (;;)
		syscall(SYS_io_uring_enter, r.fd, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0);
}

static void *waits_for_long(void *unused)
{
	struct ring r;
	struct { long s, ns; } time = { 1000, 0 };
	struct io_uring_getevents_arg arg = { .ts = (uintptr_t)&time };
	(void)unused;
	if (ring_open(&r, 0))
		exit(77);
	for (;;)
		syscall(SYS_io_uring_enter, r.fd, 0, 1, IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG, &arg, sizeof arg);
}

int main(void)
{
	pthread_t thread;

	pthread_create(&thread, NULL, waits, NULL);
	pthread_create(&thread, NULL, waits_for_long, NULL);
	usleep(100000);
	puts("ready");
	fflush(stdout);
	for (;; rounds++) {
		char *block = malloc(100);

		memset(block, rounds, 100);
		free(block);
		usleep(5000);
	}
}
