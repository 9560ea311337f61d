/* io_uring with raw calls: reads, writes, vectors, sockets, messages, registered buffers, times, links, cancellation,
 * threads and a fork. Each step prints what it has got; a kernel without io_uring says so. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "rings.h"

char watched[3 * 4096] __attribute__((aligned(4096)));
char *block;

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("" ::: "memory");
}

static void files(struct ring *r, const char *name, char *buf)
{
	int fd = open("/tmp", O_TMPFILE | O_RDWR, 0600);
	struct iovec v[3] = { { buf, 3 }, { buf + 4094, 5 }, { buf + 8000, 4 } };
	struct iovec fixed[2] = { { buf, 4096 }, { buf + 4096, 4096 } };
	struct io_uring_sqe *s;
	int n;

	printf("%s\n", name);
	strcpy(buf, "written by io_uring");
	get(r, IORING_OP_WRITE, fd, buf, 19, 0);
	say("write", one(r), buf);
	memset(buf, 0, 8192);
	get(r, IORING_OP_READ, fd, buf + 4090, 19, 0);
	say("read", one(r), buf + 4090);
	get(r, IORING_OP_READV, fd, v, 3, 0);
	say("readv", one(r), buf);
	say("readv", 0, buf + 4094);
	say("readv", 0, buf + 8000);
	get(r, IORING_OP_WRITEV, fd, v, 3, 19);
	say("writev", one(r), 0);
	n = syscall(SYS_io_uring_register, r->fd, IORING_REGISTER_BUFFERS, fixed, 2);
	say("register", n < 0 ? -errno : n, 0);
	memset(buf, 0, 8192);
	s = get(r, IORING_OP_READ_FIXED, fd, buf + 100, 12, 19);
	s->buf_index = 0;
	say("read fixed", one(r), buf + 100);
	s = get(r, IORING_OP_READ_FIXED, fd, buf + 5000, 7, 0);
	s->buf_index = 1;
	say("read fixed", one(r), buf + 5000);
	s = get(r, IORING_OP_WRITE_FIXED, fd, buf + 5000, 7, 40);
	s->buf_index = 1;
	say("write fixed", one(r), 0);
	s = get(r, IORING_OP_READ_FIXED, fd, buf + 5000, 7, 0);
	say("read beyond", one(r), 0);
	n = syscall(SYS_io_uring_register, r->fd, IORING_UNREGISTER_BUFFERS, NULL, 0);
	say("unregister", n < 0 ? -errno : n, 0);
	n = syscall(SYS_io_uring_register, r->fd, IORING_REGISTER_FILES, memcpy(buf, &fd, sizeof fd), 1);
	say("register files", n < 0 ? -errno : n, 0);
	s = get(r, IORING_OP_READ, 0, buf, 7, 0);
	s->flags = IOSQE_FIXED_FILE;
	say("read", one(r), buf);
	syscall(SYS_io_uring_register, r->fd, IORING_UNREGISTER_FILES, NULL, 0);
	get(r, IORING_OP_READ, fd, (void *)8, 7, 0);
	say("read nowhere", one(r), 0);
	strcpy(buf + 4000, "/proc/self/stat");
	get(r, IORING_OP_STATX, AT_FDCWD, buf + 4000, STATX_MODE, (uint64_t)(buf + 4200));
	n = one(r);
	say("statx", n, 0);
	printf("%o\n", ((struct statx *)(buf + 4200))->stx_mode);
	get(r, IORING_OP_OPENAT, AT_FDCWD, buf + 4000, 0, 0);
	n = one(r);
	say("openat", n >= 0, 0);
	get(r, IORING_OP_CLOSE, n, NULL, 0, 0);
	say("close", one(r), 0);
	s = get(r, IORING_OP_WRITE, fd, "linked", 6, 0);
	s->flags = IOSQE_IO_LINK;
	get(r, IORING_OP_READ, fd, buf, 6, 0);
	say("linked", submit(r, 2), 0);
	say("linked", next(r).res, 0);
	say("linked", next(r).res, buf);
	close(fd);
}

static void sockets(struct ring *r, const char *name, char *buf)
{
	struct iovec v[2] = { { buf + 10, 4 }, { buf + 4092, 8 } };
	struct msghdr *m = (struct msghdr *)(buf + 6000);
	struct timespec *t = (struct timespec *)(buf + 7000);
	struct io_uring_cqe c;
	struct io_uring_sqe *s;
	int pair[2];
	uint64_t number;

	printf("%s\n", name);
	socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
	memset(buf, 0, 8192);
	get(r, IORING_OP_RECV, pair[0], buf + 4090, 10, 0);
	say("recv waits", submit(r, 0), 0);
	strcpy(buf, "by a socket");
	get(r, IORING_OP_SEND, pair[1], buf, 10, 0);
	say("send", submit(r, 2), 0);
	say("send", next(r).res, 0);
	say("recv", next(r).res, buf + 4090);
	*m = (struct msghdr){ .msg_iov = v, .msg_iovlen = 2, .msg_flags = 77 };
	get(r, IORING_OP_RECVMSG, pair[0], m, 1, 0);
	say("recvmsg waits", submit(r, 0), 0);
	printf("%d %d\n", m->msg_iov == v, (int)m->msg_iovlen);
	write(pair[1], "messages...", 11);
	c = next(r);
	say("recvmsg", c.res, buf + 10);
	say("recvmsg", m->msg_flags, buf + 4092);
	get(r, IORING_OP_SENDMSG, pair[1], m, 1, 0);
	say("sendmsg", one(r), 0);
	memset(buf + 100, 0, 20);
	get(r, IORING_OP_READ, pair[0], buf + 100, 20, 0);
	say("read", one(r), buf + 100);
	*t = (struct timespec){ 0, 20000000 };
	get(r, IORING_OP_TIMEOUT, -1, t, 1, 0);
	say("timeout", one(r), 0);
	s = get(r, IORING_OP_RECV, pair[0], buf, 10, 0);
	s->flags = IOSQE_IO_LINK;
	get(r, IORING_OP_LINK_TIMEOUT, -1, t, 1, 0);
	say("recv with a timeout", submit(r, 2), 0);
	say("recv or timeout", next(r).res != 0, 0);
	say("recv or timeout", next(r).res != 0, 0);
	number = get(r, IORING_OP_RECV, pair[0], buf, 10, 0)->user_data;
	submit(r, 0);
	get(r, IORING_OP_ASYNC_CANCEL, -1, (void *)number, 0, 0);
	submit(r, 2);
	for (int i = 0; i < 2; i++) {
		c = next(r);
		say(c.user_data == number ? "cancelled" : "cancel", c.res, 0);
	}
	close(pair[0]);
	close(pair[1]);
}

static void *thread(void *arg)
{
	char *buf = (char *)arg;
	struct ring r;
	int fd = open("/dev/zero", O_RDONLY), bad = 0;

	if (ring_open(&r, 0))
		return (void *)1;
	for (int i = 0; i < 200; i++) {
		memset(buf, 1, 64);
		get(&r, IORING_OP_READ, fd, buf, 32, 0);
		get(&r, IORING_OP_READ, fd, buf + 32, 31, 0)->flags = i % 7 ? 0 : IOSQE_ASYNC;
		submit(&r, 2);
		bad += next(&r).res < 31;
		bad += next(&r).res < 31;
		for (int j = 0; j < 63; j++)
			bad += buf[j] != 0;
		bad += buf[63] != 1;
	}
	close(fd);
	close(r.fd);
	return (void *)(long)bad;
}

__attribute__((noinline)) void in_flight(void)
{
	__asm__ volatile("" ::: "memory");
}

__attribute__((noinline)) void completed(void)
{
	__asm__ volatile("" ::: "memory");
}

/* A receive is in flight, and then a registered buffer: what a debugger sets and deletes meanwhile spoils neither. */
static int flight(void)
{
	struct iovec v = { watched, 4096 };
	struct ring r;
	int pair[2], fd = open("/dev/zero", O_RDONLY);

	if (ring_open(&r, 0))
		return 1;
	socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
	get(&r, IORING_OP_RECV, pair[0], watched, 8, 0);
	submit(&r, 0);
	in_flight();
	write(pair[1], "received", 8);
	say("recv", next(&r).res, watched);
	completed();
	watched[0] = 'R';
	say("register", syscall(SYS_io_uring_register, r.fd, IORING_REGISTER_BUFFERS, &v, 1), 0);
	in_flight();
	get(&r, IORING_OP_READ_FIXED, fd, watched + 1, 3, 0);
	say("read fixed", one(&r), watched);
	printf("%c %d %c\n", watched[0], watched[1], watched[4]);
	close(r.fd);
	completed();
	watched[0] = 'S';
	return 0;
}

int main(int argc, char **argv)
{
	struct ring r, second;
	pthread_t threads[4];
	void *bad;
	int status, error;
	pid_t child;
	char local[8192];

	block = malloc(16384);
	ready();
	if (argc > 1 && !strcmp(argv[1], "refused")) {
		printf("%s\n", strerror(-ring_open(&r, 1 << 31)));
		return 0;
	}
	if (argc > 1 && !strcmp(argv[1], "flight"))
		return flight();
	error = ring_open(&r, 0);
	if (error) {
		printf("no io_uring: %s\n", strerror(-error));
		return 0;
	}
	files(&r, "files, a global", watched);
	files(&r, "files, the heap", block);
	files(&r, "files, the stack", local);
	sockets(&r, "sockets, a global", watched);
	sockets(&r, "sockets, the heap", block);
	for (int i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, thread, i & 1 ? block + 64 * i : watched + 64 * i);
	for (int i = 0; i < 4; i++) {
		pthread_join(threads[i], &bad);
		say("thread", (int)(long)bad, 0);
	}
	/* The ring is still there after its second descriptor has gone, and ends with the last. */
	error = dup(r.fd);
	close(r.fd);
	r.fd = error;
	get(&r, IORING_OP_NOP, -1, NULL, 0, 0);
	say("nop by a second descriptor", one(&r), 0);
	child = fork();
	if (child == 0) {
		if (ring_open(&second, 0))
			_exit(2);
		strcpy(block, "child");
		error = open("/dev/zero", O_RDONLY);
		get(&second, IORING_OP_READ, error, block, 3, 0);
		_exit(one(&second) == 3 && !memcmp(block, "\0\0\0ld", 5) ? 0 : 1);
	}
	waitpid(child, &status, 0);
	say("child", status, 0);
	close(r.fd);
	return 0;
}
