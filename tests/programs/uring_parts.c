/* Parts of io_uring, each by its name: completions that are skipped, rings that a thread has registered. */
#include "rings.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>

char watched[2 * 4096] __attribute__((aligned(4096)));
char *block;

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("" ::: "memory");
}

static unsigned completions(struct ring *r)
{
	return __atomic_load_n(r->cq_tail, __ATOMIC_ACQUIRE) - *r->cq_head;
}

/* Requests that say nothing when they succeed. */
static void skipped(char *buf)
{
	struct ring r;
	struct io_uring_cqe c;
	int pair[2], fd = open("/tmp", O_TMPFILE | O_RDWR, 0600);

	say("open", ring_open(&r, 0), 0);
	socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
	pwrite(fd, "skipped", 7, 0);
	memset(buf, 0, 8192);
	get(&r, IORING_OP_READ, fd, buf + 4090, 7, 0)->flags = IOSQE_CQE_SKIP_SUCCESS | IOSQE_IO_LINK;
	get(&r, IORING_OP_NOP, -1, NULL, 0, 0);
	say("a read and a nop", submit(&r, 1), 0);
	say("only the nop", completions(&r), buf + 4090);
	say("nop", next(&r).res, 0);
	/* A failure is told, and of what is linked to it nothing is. */
	get(&r, IORING_OP_READ, 77, buf, 7, 0)->flags = IOSQE_CQE_SKIP_SUCCESS | IOSQE_IO_LINK;
	get(&r, IORING_OP_READ, fd, buf, 7, 0);
	submit(&r, 1);
	say("a failure", next(&r).res, buf);
	say("nothing else", completions(&r), 0);
	/* The second of a chain fails: the first has been done. */
	get(&r, IORING_OP_READ, fd, buf + 100, 7, 0)->flags = IOSQE_CQE_SKIP_SUCCESS | IOSQE_IO_LINK;
	get(&r, IORING_OP_READ, 77, buf, 7, 0)->flags = IOSQE_IO_LINK;
	get(&r, IORING_OP_READ, fd, buf, 7, 0);
	submit(&r, 2);
	say("done before a failure", completions(&r), buf + 100);
	say("failure", next(&r).res, 0);
	say("cancelled", next(&r).res, buf);
	/* Many sends of which nothing is heard. */
	for (int i = 0; i < 3000; i++) {
		buf[200] = 'a' + i % 26;
		get(&r, IORING_OP_SEND, pair[0], buf + 200, 1, 0)->flags = IOSQE_CQE_SKIP_SUCCESS;
		get(&r, IORING_OP_RECV, pair[1], buf + 300, 1, 0);
		submit(&r, 1);
		c = next(&r);
		if (c.res != 1 || buf[300] != buf[200] || completions(&r))
			say("lost", i, buf + 300);
	}
	say("sent", buf[300], 0);
	close(r.fd);
	close(fd);
}

static int enter(int number, unsigned submit, unsigned wait)
{
	int n = syscall(SYS_io_uring_enter, number, submit, wait, IORING_ENTER_REGISTERED_RING | (wait ? IORING_ENTER_GETEVENTS : 0), NULL, 0);

	return n < 0 ? -errno : n;
}

static void *stranger(void *number)
{
	say("in another thread", enter(*(int *)number, 0, 0), 0);
	return NULL;
}

/* A ring by a number of the thread, also when no descriptor of it is left. */
static void registered(char *buf)
{
	struct { unsigned offset, resv; uint64_t data; } *update = (void *)(buf + 4088);
	struct ring r;
	pthread_t thread;
	int n, number, fd = open("/dev/zero", O_RDONLY);

	say("open", ring_open(&r, 0), 0);
	update->offset = -1;
	update->resv = 0;
	update->data = r.fd;
	n = syscall(SYS_io_uring_register, r.fd, IORING_REGISTER_RING_FDS, update, 1);
	number = update->offset;
	say("register", n, 0);
	say("number", number, 0);
	get(&r, IORING_OP_READ, fd, strcpy(buf, "zero"), 2, 0);
	*r.tail += 1;
	say("read", enter(number, 1, 1), 0);
	r.waiting = 0;
	printf("%d %d %s\n", next(&r).res, buf[1], buf + 2);
	pthread_create(&thread, NULL, stranger, &number);
	pthread_join(thread, NULL);
	close(r.fd);
	get(&r, IORING_OP_READ, fd, strcpy(buf, "zero"), 3, 0);
	*r.tail += 1;
	r.waiting = 0;
	say("read without a descriptor", enter(number, 1, 1), 0);
	printf("%d %d %s\n", next(&r).res, buf[2], buf + 3);
	n = syscall(SYS_io_uring_register, number, IORING_UNREGISTER_BUFFERS | 1u << 31, NULL, 0);
	say("a call by the number", n < 0 ? -errno : n, 0);
	say("no such number", enter(number + 1, 0, 0), 0);
	update->offset = number;
	update->resv = 0;
	update->data = 0;
	n = syscall(SYS_io_uring_register, number, IORING_UNREGISTER_RING_FDS | 1u << 31, update, 1);
	say("unregister", n < 0 ? -errno : n, 0);
	say("gone", enter(number, 0, 0), 0);
	close(fd);
}

int main(int argc, char **argv)
{
	struct ring r;

	block = malloc(16384);
	ready();
	if (argc < 2 || ring_open(&r, 0)) {
		printf("no io_uring\n");
		return 0;
	}
	close(r.fd);
	for (int i = 0; i < 2; i++) {
		char *buf = i ? block : watched;

		printf("%s, %s\n", argv[1], i ? "the heap" : "a global");
		if (!strcmp(argv[1], "skipped"))
			skipped(buf);
		else if (!strcmp(argv[1], "registered"))
			registered(buf);
	}
	return 0;
}
