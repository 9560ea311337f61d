/* Waits of every sort. Each checks how long it takes and how it ends. Runs for the number of seconds in its
 * argument, or until a debugger sets "enough". */
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
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
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
		printf("timed_waits: %s was early by %ld ns\n", what, least - (now() - begun));
	}
	if (!right) {
		odd++;
		printf("timed_waits: %s: %s\n", what, strerror(errno));
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

/* Calls that move more than fits at once: none may end halfway. */
static int bulk[2], sockets[2];

static char block[200000];

static void *write_much(void *unused)
{
	struct iovec parts[4] = { { block, 1 }, { block, 70000 }, { block, 0 }, { block, sizeof block - 70001 } };

	while (!done) {
		if (write(bulk[1], block, sizeof block) != sizeof block) {
			odd++;
			puts("timed_waits: a write ended halfway");
		}
		if (writev(bulk[1], parts, 4) != sizeof block) {
			odd++;
			puts("timed_waits: a writev ended halfway");
		}
	}
	close(bulk[1]);
	return unused;
}

/* Each message takes a descriptor with it; its bytes are numbered. */
static int wide[2];

static void *send_much(void *unused)
{
	static unsigned char bytes[100000];
	union {
		char room[CMSG_SPACE(sizeof(int))];
		struct cmsghdr aligned;
	} control;
	struct iovec parts[3] = { { bytes, 5 }, { bytes + 5, 60000 }, { bytes + 60005, sizeof bytes - 60005 } };
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = 3 };

	for (unsigned i = 0; i < sizeof bytes; i++)
		bytes[i] = i % 250;
	while (!done) {
		message.msg_control = &control;
		message.msg_controllen = sizeof control;
		struct cmsghdr *first = CMSG_FIRSTHDR(&message);
		first->cmsg_level = SOL_SOCKET;
		first->cmsg_type = SCM_RIGHTS;
		first->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(first), &wide[1], sizeof(int));
		if (sendmsg(wide[1], &message, 0) != sizeof bytes) {
			odd++;
			puts("timed_waits: a sendmsg ended halfway");
		}
	}
	shutdown(wide[1], SHUT_WR);
	return unused;
}

static void *take_slowly(void *unused)
{
	static unsigned char part[4000];
	union {
		char room[CMSG_SPACE(10 * sizeof(int))];
		struct cmsghdr aligned;
	} control;
	struct iovec all = { part, sizeof part };
	struct timespec t = { 0, MS };
	unsigned long at = 0;
	long n, descriptors = 0;

	for (;;) {
		struct msghdr message = { .msg_iov = &all, .msg_iovlen = 1, .msg_control = &control,
					  .msg_controllen = sizeof control };
		n = recvmsg(wide[0], &message, 0);
		if (n <= 0)
			break;
		for (long i = 0; i < n; i++, at++)
			if (part[i] != at % 100000 % 250) {
				odd++;
				puts("timed_waits: a sendmsg went on at another byte");
				break;
			}
		struct cmsghdr *first = CMSG_FIRSTHDR(&message);
		if (first) {
			int fd;
			memcpy(&fd, CMSG_DATA(first), sizeof fd);
			close(fd);
			descriptors++;
		}
		nanosleep(&t, 0);
	}
	if (descriptors != (long)(at / 100000)) {
		odd++;
		printf("timed_waits: %ld descriptors with %lu messages\n", descriptors, at / 100000);
	}
	return unused;
}

/* Sockets on which a wait is limited. */
static int quiet[2], full[2], listening;

static int limited(void)
{
	struct timeval limit = { 0, 40 * 1000 };
	struct sockaddr_un name = { .sun_family = AF_UNIX };

	listening = socket(AF_UNIX, SOCK_STREAM, 0);
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, quiet) || socketpair(AF_UNIX, SOCK_STREAM, 0, full) ||
	    bind(listening, (struct sockaddr *)&name, sizeof name.sun_family) || listen(listening, 1))
		return -1;
	while (send(full[1], block, sizeof block, MSG_DONTWAIT) > 0)
		;
	return setsockopt(quiet[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) ||
	       setsockopt(listening, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) ||
	       setsockopt(full[1], SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

static void limited_waits(void)
{
	char c;
	long begun = now();

	ended("recv", begun, 39 * MS, recv(quiet[0], &c, 1, 0) == -1 && errno == EAGAIN);
	begun = now();
	ended("read", begun, 39 * MS, read(quiet[0], &c, 1) == -1 && errno == EAGAIN);
	begun = now();
	ended("accept", begun, 39 * MS, accept(listening, 0, 0) == -1 && errno == EAGAIN);
	begun = now();
	ended("send", begun, 39 * MS, send(full[1], &c, 1, 0) == -1 && errno == EAGAIN);
	begun = now();
	ended("write", begun, 39 * MS, write(full[1], block, sizeof block) == -1 && errno == EAGAIN);
}

static void *read_slowly(void *unused)
{
	static char part[5000], few[500];
	struct timespec t = { 0, MS };

	while (read(bulk[0], part, sizeof part) > 0) {
		if (!done && send(sockets[1], few, sizeof few, 0) != sizeof few)
			odd++;
		nanosleep(&t, 0);
	}
	close(sockets[1]);
	return unused;
}

static void *receive_all(void *unused)
{
	static char block[20000];
	long n;

	while ((n = recv(sockets[0], block, sizeof block, MSG_WAITALL)) > 0)
		if (n != sizeof block && !done) {
			odd++;
			printf("timed_waits: a recv ended at %ld\n", n);
		}
	return unused;
}

int main(int argc, char **argv)
{
	pthread_t thread, more[5];
	unsigned long context = 0;
	long end;
	int rounds = 0, word = 0, ep = epoll_create1(0);

	if (pipe(data) || pipe(silent) || pipe(bulk) || socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) ||
	    socketpair(AF_UNIX, SOCK_STREAM, 0, wide) || limited() || syscall(SYS_io_setup, 4, &context))
		return 2;
	ready();
	end = now() + (argc > 1 ? atol(argv[1]) : 1) * 1000L * MS;
	pthread_create(&thread, 0, feed, 0);
	pthread_create(&more[0], 0, write_much, 0);
	pthread_create(&more[1], 0, read_slowly, 0);
	pthread_create(&more[2], 0, receive_all, 0);
	pthread_create(&more[3], 0, send_much, 0);
	pthread_create(&more[4], 0, take_slowly, 0);
	while (now() < end && !enough) {
		struct timespec t = { 0, 7 * MS };
		struct timeval v = { 0, 7000 };
		struct pollfd p = { silent[0], POLLIN, 0 };
		struct epoll_event e;
		char c, events[64];
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
		begun = now();
		ended("io_getevents", begun, 7 * MS, syscall(SYS_io_getevents, context, 1, 1, events, &t) == 0);
		ended("read", 0, 0, read(data[0], &c, 1) == 1);
		limited_waits();
		watched[16]++;
		rounds++;
	}
	done = 1;
	pthread_join(thread, 0);
	for (int i = 0; i < 5; i++)
		pthread_join(more[i], 0);
	printf("timed_waits: %ld odd, %ld early, %s\n", odd, early, rounds > 1 ? "some rounds" : "hardly a round");
	return odd || early;
}
