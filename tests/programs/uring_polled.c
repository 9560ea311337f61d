/* io_uring with a polling thread: what setup permits, requests that it takes by itself or when it is woken, what the
 * calls return. The program keeps to the rules of such a ring: it wakes the thread when the ring says that it sleeps. */
#include "rings.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>

char watched[2 * 4096] __attribute__((aligned(4096)));
char *block;
static unsigned *sq_flags;

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("" ::: "memory");
}

/* Prints the kernel's answer to these flags. The descriptor stays open. */
static int setup(const char *what, unsigned flags, unsigned cpu, int other)
{
	struct io_uring_params p = { .flags = flags, .sq_thread_cpu = cpu, .sq_thread_idle = 20, .wq_fd = other };
	int fd = syscall(SYS_io_uring_setup, 4, &p);

	printf("%s: %s, flags %s, cpu %d, idle %d\n", what, fd < 0 ? strerror(errno) : "made", p.flags == flags ? "kept" : "changed",
	       p.sq_thread_cpu, p.sq_thread_idle);
	return fd;
}

static void permitted(void)
{
	int polled = setup("polled", IORING_SETUP_SQPOLL, 0, 0), plain = setup("plain", 0, 0, 0);

	close(setup("on processor 0", IORING_SETUP_SQPOLL | IORING_SETUP_SQ_AFF, 0, 0));
	setup("on a processor that is none", IORING_SETUP_SQPOLL | IORING_SETUP_SQ_AFF, 100000, 0);
	setup("a processor without a thread", IORING_SETUP_SQ_AFF, 0, 0);
	setup("with deferred work", IORING_SETUP_SQPOLL | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN, 0, 0);
	setup("with cooperation", IORING_SETUP_SQPOLL | IORING_SETUP_COOP_TASKRUN, 0, 0);
	close(setup("attached", IORING_SETUP_SQPOLL | IORING_SETUP_ATTACH_WQ, 0, polled));
	setup("attached to a plain one", IORING_SETUP_SQPOLL | IORING_SETUP_ATTACH_WQ, 0, plain);
	setup("attached to nothing", IORING_SETUP_SQPOLL | IORING_SETUP_ATTACH_WQ, 0, 77);
	close(polled);
	close(plain);
}

static int polled_open(struct ring *r, unsigned flags)
{
	struct io_uring_params p;
	int error = ring_open_as(r, IORING_SETUP_SQPOLL | flags, &p);

	sq_flags = (unsigned *)((char *)r->head - p.sq_off.head + p.sq_off.flags);
	return error;
}

/* Hands over what is there, as liburing does. */
static void publish(struct ring *r)
{
	unsigned n = r->waiting;

	r->waiting = 0;
	__atomic_store_n(r->tail, *r->tail + n, __ATOMIC_RELEASE);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (__atomic_load_n(sq_flags, __ATOMIC_RELAXED) & IORING_SQ_NEED_WAKEUP)
		syscall(SYS_io_uring_enter, r->fd, n, 0, IORING_ENTER_SQ_WAKEUP, NULL, 0);
}

/* The next completion, without any call. */
static int spin(struct ring *r)
{
	int result;

	while (*r->cq_head == __atomic_load_n(r->cq_tail, __ATOMIC_ACQUIRE))
		;
	result = r->cqes[*r->cq_head & *r->cq_mask].res;
	__atomic_store_n(r->cq_head, *r->cq_head + 1, __ATOMIC_RELEASE);
	return result;
}

static void requests(struct ring *r, const char *name, char *buf)
{
	int fd = open("/tmp", O_TMPFILE | O_RDWR, 0600), pair[2], n;

	printf("%s\n", name);
	strcpy(buf, "taken by a thread");
	get(r, IORING_OP_WRITE, fd, buf, 17, 0);
	publish(r);
	say("write", spin(r), buf);
	memset(buf, 0, 8192);
	get(r, IORING_OP_READ, fd, buf + 4090, 17, 0);
	publish(r);
	say("read", spin(r), buf + 4090);
	/* One that fails does not keep the others. */
	get(r, IORING_OP_NOP, -1, NULL, 0, 0)->flags = 1 << 7;
	get(r, IORING_OP_NOP, -1, NULL, 0, 0);
	get(r, IORING_OP_READ, fd, buf, 5, 0)->flags = IOSQE_IO_LINK;
	get(r, IORING_OP_NOP, -1, NULL, 0, 0);
	publish(r);
	say("unknown", spin(r), 0);
	say("nop", spin(r), 0);
	say("read", spin(r), buf);
	say("linked", spin(r), 0);
	socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
	get(r, IORING_OP_RECV, pair[0], buf + 100, 8, 0);
	publish(r);
	n = syscall(SYS_io_uring_enter, r->fd, 3, 0, IORING_ENTER_SQ_WAKEUP | IORING_ENTER_SQ_WAIT, NULL, 0);
	say("enter returns the number that it got", n, 0);
	write(pair[1], "received", 8);
	n = syscall(SYS_io_uring_enter, r->fd, 0, 1, IORING_ENTER_SQ_WAKEUP | IORING_ENTER_GETEVENTS, NULL, 0);
	say("enter waits", n, 0);
	say("recv", spin(r), buf + 100);
	for (int i = 0; i < ENTRIES; i++)
		get(r, IORING_OP_NOP, -1, NULL, 0, 0);
	publish(r);
	n = syscall(SYS_io_uring_enter, r->fd, 1, ENTRIES, IORING_ENTER_SQ_WAKEUP | IORING_ENTER_GETEVENTS, NULL, 0);
	say("a full ring", n, 0);
	for (int i = 0; i < ENTRIES; i++)
		n += spin(r);
	say("nops", n, 0);
	close(pair[0]);
	close(pair[1]);
	close(fd);
}

/* Another thread may submit, also where only one may by the flags: it is the polling thread that does. */
static void *other(void *arg)
{
	struct ring *r = arg;

	get(r, IORING_OP_NOP, -1, NULL, 0, 0);
	publish(r);
	say("another thread", spin(r), 0);
	return NULL;
}

static void disabled(void)
{
	struct ring r;
	int n;

	say("disabled", polled_open(&r, IORING_SETUP_R_DISABLED), 0);
	get(&r, IORING_OP_NOP, -1, NULL, 0, 0);
	*r.tail += 1;
	n = syscall(SYS_io_uring_enter, r.fd, 1, 0, IORING_ENTER_SQ_WAKEUP, NULL, 0);
	say("not enabled yet", n < 0 ? -errno : n, 0);
	n = syscall(SYS_io_uring_register, r.fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0);
	say("enabled", n, 0);
	say("what was there", spin(&r), 0);
	close(r.fd);
}

int main(void)
{
	struct ring r;
	pthread_t thread;

	block = malloc(16384);
	ready();
	if (ring_open(&r, 0)) {
		printf("no io_uring\n");
		return 0;
	}
	close(r.fd);
	permitted();
	say("open", polled_open(&r, IORING_SETUP_SINGLE_ISSUER), 0);
	requests(&r, "a global", watched);
	requests(&r, "the heap", block);
	pthread_create(&thread, NULL, other, &r);
	pthread_join(thread, NULL);
	close(r.fd);
	disabled();
	return 0;
}
