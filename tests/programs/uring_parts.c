/* Parts of io_uring, each run by its name: skipped completions, rings that a thread has registered, provided
 * buffers, sends that do not copy, and requests of rarer sorts. */
#include "rings.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>

/* As the kernel has them; Debian's header is older. */
#define SEND_ZC 47
#define SENDMSG_ZC 48
#define NOTIFIED 8

char watched[2 * 4096] __attribute__((aligned(4096)));
char *block, descriptor_memory[3 * 4096] __attribute__((aligned(4096)));

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("" ::: "memory");
}

static unsigned completions(struct ring *r)
{
	return __atomic_load_n(r->cq_tail, __ATOMIC_ACQUIRE) - *r->cq_head;
}

/* Requests without a completion when they succeed. */
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
	/* A failure has a completion; the request that is linked to it has none. */
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
	/* Many sends without completions. */
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

/* Prints a completion, and returns the number of the buffer that it has taken. */
static int taken(struct ring *r, const char *what, char *buffers)
{
	struct io_uring_cqe c = next(r);
	int number = c.flags & IORING_CQE_F_BUFFER ? (int)(c.flags >> IORING_CQE_BUFFER_SHIFT) : -1;

	printf("%s: %d, buffer %d, more %d: %.*s\n", what, c.res, number, !!(c.flags & IORING_CQE_F_MORE), c.res > 0 && number >= 0 ? c.res : 0,
	       number >= 0 ? buffers + 512 * number : "");
	return number;
}

static void receive(struct ring *r, int fd, unsigned multishot, unsigned wait)
{
	struct io_uring_sqe *s = get(r, IORING_OP_RECV, fd, NULL, multishot ? 0 : 512, 0);

	s->flags = IOSQE_BUFFER_SELECT;
	s->buf_group = 7;
	s->ioprio = multishot ? IORING_RECV_MULTISHOT : 0;
	say("receive", submit(r, wait), 0);
}

/* Buffers by requests: 8 of 512 bytes, of which the first begins in the middle of a page. */
static void provided(char *buf)
{
	char *buffers = buf + 256;
	struct ring r;
	int pair[2], fd = open("/tmp", O_TMPFILE | O_RDWR, 0600), number;
	struct io_uring_sqe *s;
	struct iovec v = { NULL, 6 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1 };

	say("open", ring_open(&r, 0), 0);
	socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
	pwrite(fd, "of a file", 9, 0);
	get(&r, IORING_OP_PROVIDE_BUFFERS, 8, buffers, 512, 0)->buf_group = 7;
	say("provide", one(&r), 0);
	write(pair[1], "first", 5);
	receive(&r, pair[0], 0, 1);
	number = taken(&r, "recv", buffers);
	receive(&r, pair[0], 0, 0);
	write(pair[1], "second", 6);
	taken(&r, "recv", buffers);
	get(&r, IORING_OP_PROVIDE_BUFFERS, 1, buffers + 512 * number, 512, number)->buf_group = 7;
	say("again", one(&r), 0);
	s = get(&r, IORING_OP_READ, fd, NULL, 100, 0);
	s->flags = IOSQE_BUFFER_SELECT;
	s->buf_group = 7;
	submit(&r, 1);
	taken(&r, "read", buffers);
	s = get(&r, IORING_OP_READV, fd, &v, 1, 3);
	s->flags = IOSQE_BUFFER_SELECT;
	s->buf_group = 7;
	submit(&r, 1);
	taken(&r, "readv", buffers);
	write(pair[1], "message", 7);
	s = get(&r, IORING_OP_RECVMSG, pair[0], &m, 1, 0);
	s->flags = IOSQE_BUFFER_SELECT;
	s->buf_group = 7;
	submit(&r, 1);
	taken(&r, "recvmsg", buffers);
	say("its vector", m.msg_iov == &v, 0);
	receive(&r, pair[0], 1, 1);
	taken(&r, "the rest", buffers);
	write(pair[1], "one", 3);
	taken(&r, "one", buffers);
	write(pair[1], "two", 3);
	taken(&r, "two", buffers);
	write(pair[1], "three", 5);
	taken(&r, "three", buffers);
	write(pair[1], "four", 4);
	taken(&r, "none left", buffers);
	get(&r, IORING_OP_PROVIDE_BUFFERS, 3, buffers, 512, 0)->buf_group = 7;
	say("provide", one(&r), 0);
	get(&r, IORING_OP_REMOVE_BUFFERS, 2, NULL, 0, 0)->buf_group = 7;
	say("remove", one(&r), 0);
	receive(&r, pair[0], 0, 1);
	taken(&r, "the last", buffers);
	get(&r, IORING_OP_REMOVE_BUFFERS, 2, NULL, 0, 0)->buf_group = 8;
	say("remove nothing", one(&r), 0);
	get(&r, IORING_OP_PROVIDE_BUFFERS, 1, buffers, 512, 70000)->buf_group = 7;
	say("number too large", one(&r), 0);
	close(pair[0]);
	close(pair[1]);
	close(fd);
	close(r.fd);
	buffers[0] = 'x';
}

static void offer(struct io_uring_buf_ring *ring, char *buffers, int number)
{
	struct io_uring_buf *b = &ring->bufs[ring->tail & 7];

	b->addr = (uint64_t)(buffers + 512 * number);
	b->len = 512;
	b->bid = number;
	__atomic_store_n(&ring->tail, ring->tail + 1, __ATOMIC_RELEASE);
}

/* Buffers in a ring of descriptors, which is watched memory itself. */
static void descriptors(char *buf)
{
	char *buffers = buf + 256;
	struct io_uring_buf_ring *ring = (void *)(((uint64_t)descriptor_memory + 4095) & ~4095ul);
	struct io_uring_buf_reg reg = { .ring_addr = (uint64_t)ring, .ring_entries = 8, .bgid = 7 };
	struct io_uring_sqe *s;
	struct io_uring_cqe c;
	struct ring r;
	int pair[2], n, number;

	memset(ring, 0, 4096);
	say("open", ring_open(&r, 0), 0);
	socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
	n = syscall(SYS_io_uring_register, r.fd, IORING_REGISTER_PBUF_RING, &reg, 1);
	say("register", n < 0 ? -errno : n, 0);
	n = syscall(SYS_io_uring_register, r.fd, IORING_REGISTER_PBUF_RING, &reg, 1);
	say("twice", n < 0 ? -errno : n, 0);
	write(pair[1], "early", 5);
	receive(&r, pair[0], 0, 1);
	taken(&r, "none", buffers);
	for (int i = 0; i < 4; i++)
		offer(ring, buffers, i);
	receive(&r, pair[0], 0, 1);
	taken(&r, "recv", buffers);
	receive(&r, pair[0], 1, 0);
	for (int i = 0; i < 40; i++) {
		char text[] = { 'n', 'o', '0' + i / 10, '0' + i % 10 };

		write(pair[1], text, 4);
		/* A receive that finds no buffer ends, and the program asks again. */
		while ((c = next(&r)).res == -ENOBUFS) {
			s = get(&r, IORING_OP_RECV, pair[0], NULL, 0, 0);
			s->flags = IOSQE_BUFFER_SELECT;
			s->buf_group = 7;
			s->ioprio = IORING_RECV_MULTISHOT;
			submit(&r, 0);
		}
		number = c.flags >> IORING_CQE_BUFFER_SHIFT;
		printf("multishot: %d, buffer %d: %.4s\n", c.res, number, buffers + 512 * number);
		offer(ring, buffers, number);
	}
	reg.ring_entries = 3;
	reg.bgid = 9;
	n = syscall(SYS_io_uring_register, r.fd, IORING_REGISTER_PBUF_RING, &reg, 1);
	say("three", n < 0 ? -errno : n, 0);
	reg.ring_entries = 8;
	reg.ring_addr = 0x10000;
	n = syscall(SYS_io_uring_register, r.fd, IORING_REGISTER_PBUF_RING, &reg, 1);
	say("nowhere", n < 0 ? -errno : n, 0);
	reg.bgid = 7;
	n = syscall(SYS_io_uring_register, r.fd, IORING_UNREGISTER_PBUF_RING, &reg, 1);
	say("unregister", n < 0 ? -errno : n, 0);
	close(pair[0]);
	close(pair[1]);
	close(r.fd);
	buffers[0] = 'x';
}

/* Two ends of a connection over the loopback device. */
static void connection(int pair[2])
{
	struct sockaddr_in name = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof name;
	int listener = socket(AF_INET, SOCK_STREAM, 0);

	bind(listener, (struct sockaddr *)&name, len);
	listen(listener, 1);
	getsockname(listener, (struct sockaddr *)&name, &len);
	pair[0] = socket(AF_INET, SOCK_STREAM, 0);
	connect(pair[0], (struct sockaddr *)&name, len);
	pair[1] = accept(listener, NULL, NULL);
	close(listener);
}

/* Both completions of a send that does not copy. */
static void both(struct ring *r, const char *what)
{
	struct io_uring_cqe c = next(r);

	printf("%s: %d, more %d\n", what, c.res, !!(c.flags & IORING_CQE_F_MORE));
	if (c.flags & IORING_CQE_F_MORE) {
		c = next(r);
		printf("%s: %d, given back %d\n", what, c.res, !!(c.flags & NOTIFIED));
	}
}

static void zero_copy(char *buf)
{
	struct iovec v[2] = { { buf + 10, 4 }, { buf + 4092, 8 } }, fixed = { buf, 4096 };
	struct msghdr *m = (struct msghdr *)(buf + 6000);
	struct io_uring_sqe *s;
	struct ring r;
	int pair[2];
	char got[64] = "";

	say("open", ring_open(&r, 0), 0);
	connection(pair);
	memcpy(buf + 4090, "not copied", 10);
	memcpy(buf + 10, "2 and", 5);
	get(&r, SEND_ZC, pair[0], buf + 4090, 10, 0);
	submit(&r, 1);
	both(&r, "send");
	say("received", read(pair[1], got, 60), got);
	*m = (struct msghdr){ .msg_iov = v, .msg_iovlen = 2 };
	get(&r, SENDMSG_ZC, pair[0], m, 1, 0);
	submit(&r, 1);
	both(&r, "sendmsg");
	say("received", read(pair[1], got, 60), got);
	syscall(SYS_io_uring_register, r.fd, IORING_REGISTER_BUFFERS, &fixed, 1);
	s = get(&r, SEND_ZC, pair[0], buf + 10, 5, 0);
	s->ioprio = 4;
	submit(&r, 1);
	both(&r, "registered");
	say("received", read(pair[1], got, 60), got);
	v[1] = (struct iovec){ buf + 20, 3 };
	memcpy(buf + 20, "too", 3);
	s = get(&r, SENDMSG_ZC, pair[0], m, 1, 0);
	s->ioprio = 4;
	submit(&r, 1);
	both(&r, "registered, vectors");
	say("received", read(pair[1], memset(got, 0, sizeof got), 60), got);
	get(&r, SEND_ZC, 77, buf, 10, 0);
	submit(&r, 1);
	both(&r, "no socket");
	close(pair[0]);
	close(pair[1]);
	close(r.fd);
	buf[10] = 'x';
}

static void others(char *buf)
{
	char *name = buf + 4085, *value = buf + 100, *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ring r, second;
	struct io_uring_cqe c;
	struct io_uring_sqe *s;
	int fd = open("/tmp", O_TMPFILE | O_RDWR, 0600), zero = open("/dev/zero", O_RDONLY), bad = ring_open(&second, 0);

	say("open", ring_open(&r, 0) + bad, 0);
	/* A message to another ring. */
	get(&r, IORING_OP_MSG_RING, second.fd, NULL, 33, 4711);
	say("message", one(&r), 0);
	c = next(&second);
	say("message", c.res, c.user_data == 4711 ? "arrives" : "is lost");
	/* With the number of a request in flight there. */
	s = get(&second, IORING_OP_READ, zero, strcpy(value, "value"), 4, 0);
	s->user_data = 4712;
	get(&r, IORING_OP_MSG_RING, second.fd, NULL, 5, 4712);
	say("message", one(&r), 0);
	submit(&second, 2);
	say("both", next(&second).res + next(&second).res, value + 4);
	get(&r, IORING_OP_MSG_RING, zero, NULL, 5, 4712);
	say("to no ring", one(&r), 0);
	/* Advice. */
	page[0] = 'a';
	get(&r, IORING_OP_MADVISE, -1, page, 4096, 0)->fadvise_advice = MADV_WILLNEED;
	say("will need", one(&r), page);
	/* Extended attributes. */
	strcpy(name, "user.of_io_uring");
	strcpy(value, "value");
	get(&r, IORING_OP_FSETXATTR, fd, name, 5, (uint64_t)value);
	say("set", one(&r), 0);
	memset(value, 0, 5);
	get(&r, IORING_OP_FGETXATTR, fd, name, 60, (uint64_t)value);
	say("get", one(&r), value);
	munmap(page, 8192);
	close(fd);
	close(zero);
	close(r.fd);
	close(second.fd);
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
		else if (!strcmp(argv[1], "provided"))
			provided(buf);
		else if (!strcmp(argv[1], "descriptors"))
			descriptors(buf);
		else if (!strcmp(argv[1], "zero_copy"))
			zero_copy(buf);
		else if (!strcmp(argv[1], "others"))
			others(buf);
	}
	return 0;
}
