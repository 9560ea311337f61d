/* Waits of every sort, each of which knows how long it must take and how it must end; for so many seconds,
 * or until somebody sets "enough". */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MS = 1000000 };
long watched[512];
volatile long enough;
static int data[2], silent[2], done;
static long odd, early;

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

static long now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000L + t.tv_nsec;
}

static void ended(const char *what, long begun, long least, int right)
{
	if (now() - begun < least) {
		early++;
		printf("naps: %s was early by %ld ns\n", what, least - (now() - begun));
	}
	if (!right) {
		odd++;
		printf("naps: %s: %s\n", what, strerror(errno));
	}
}

static void *feed(void *unused)
{
	while (!done) {
		struct timespec t = { 0, 3 * MS };
		if (nanosleep(&t, 0))
			odd++;
		if (write(data[1], "x", 1) != 1)
			odd++;
		watched[8]++;
	}
	close(data[1]);
	return unused;
}

int main(int argc, char **argv)
{
	pthread_t thread;
	long end;
	int rounds = 0, word = 0, ep = epoll_create1(0);

	if (pipe(data) || pipe(silent))
		return 2;
	ready();
	end = now() + (argc > 1 ? atol(argv[1]) : 1) * 1000L * MS;
	pthread_create(&thread, 0, feed, 0);
	while (now() < end && !enough) {
		struct timespec t = { 0, 7 * MS };
		struct timeval v = { 0, 7000 };
		struct pollfd p = { silent[0], POLLIN, 0 };
		struct epoll_event e;
		char c;
		fd_set set;
		long begun = now();

		ended("nanosleep", begun, 7 * MS, nanosleep(&t, &t) == 0);
		begun = now();
		ended("poll", begun, 7 * MS, poll(&p, 1, 7) == 0);
		begun = now();
		ended("ppoll", begun, 7 * MS, ppoll(&p, 1, &t, 0) == 0);
		FD_ZERO(&set);
		FD_SET(silent[0], &set);
		begun = now();
		ended("select", begun, 7 * MS, select(silent[0] + 1, &set, 0, 0, &v) == 0);
		begun = now();
		ended("epoll_wait", begun, 7 * MS, epoll_wait(ep, &e, 1, 7) == 0);
		begun = now();
		ended("futex", begun, 7 * MS,
		      syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &t) == -1 && errno == ETIMEDOUT);
		ended("read", 0, 0, read(data[0], &c, 1) == 1);
		watched[16]++;
		rounds++;
	}
	done = 1;
	pthread_join(thread, 0);
	printf("naps: %ld odd, %ld early, %s\n", odd, early, rounds > 0 ? "some rounds" : "no round");
	return odd || early;
}
