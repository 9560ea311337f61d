/* io_uring with raw calls, for several programs. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/io_uring.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ENTRIES 16

struct ring {
	int fd;
	unsigned *head, *tail, *mask, *array;
	unsigned *cq_head, *cq_tail, *cq_mask;
	struct io_uring_sqe *sqes;
	struct io_uring_cqe *cqes;
	unsigned waiting;
};

static inline int ring_open_as(struct ring *r, unsigned flags, struct io_uring_params *given)
{
	struct io_uring_params p = { .flags = flags };
	char *at;
	size_t len;

	memset(r, 0, sizeof *r);
	r->fd = syscall(SYS_io_uring_setup, ENTRIES, &p);
	if (r->fd < 0)
		return -errno;
	len = p.sq_off.array + p.sq_entries * 4;
	if (len < p.cq_off.cqes + p.cq_entries * sizeof *r->cqes)
		len = p.cq_off.cqes + p.cq_entries * sizeof *r->cqes;
	at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, r->fd, IORING_OFF_SQ_RING);
	r->sqes = mmap(NULL, p.sq_entries * sizeof *r->sqes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, r->fd, IORING_OFF_SQES);
	r->head = (unsigned *)(at + p.sq_off.head);
	r->tail = (unsigned *)(at + p.sq_off.tail);
	r->mask = (unsigned *)(at + p.sq_off.ring_mask);
	r->array = (unsigned *)(at + p.sq_off.array);
	r->cq_head = (unsigned *)(at + p.cq_off.head);
	r->cq_tail = (unsigned *)(at + p.cq_off.tail);
	r->cq_mask = (unsigned *)(at + p.cq_off.ring_mask);
	r->cqes = (struct io_uring_cqe *)(at + p.cq_off.cqes);
	*given = p;
	return 0;
}

static inline int ring_open(struct ring *r, unsigned flags)
{
	struct io_uring_params p;

	return ring_open_as(r, flags, &p);
}

static inline struct io_uring_sqe *get(struct ring *r, int op, int fd, const void *addr, unsigned len, uint64_t off)
{
	static uint64_t number = 100;
	unsigned tail = *r->tail + r->waiting++, at = tail & *r->mask;
	struct io_uring_sqe *s = &r->sqes[at];

	r->array[at] = at;
	memset(s, 0, sizeof *s);
	s->opcode = op;
	s->fd = fd;
	s->addr = (uint64_t)addr;
	s->len = len;
	s->off = off;
	s->user_data = ++number;
	return s;
}

static inline int submit(struct ring *r, unsigned wait)
{
	unsigned n = r->waiting;
	int result;

	__atomic_store_n(r->tail, *r->tail + n, __ATOMIC_RELEASE);
	r->waiting = 0;
	do
		result = syscall(SYS_io_uring_enter, r->fd, n, wait, wait ? IORING_ENTER_GETEVENTS : 0, NULL, 0);
	while (result < 0 && errno == EINTR);
	return result < 0 ? -errno : result;
}

static inline struct io_uring_cqe next(struct ring *r)
{
	struct io_uring_cqe c;

	while (*r->cq_head == __atomic_load_n(r->cq_tail, __ATOMIC_ACQUIRE))
		syscall(SYS_io_uring_enter, r->fd, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0);
	c = r->cqes[*r->cq_head & *r->cq_mask];
	__atomic_store_n(r->cq_head, *r->cq_head + 1, __ATOMIC_RELEASE);
	return c;
}

/* One request, alone. */
static inline int one(struct ring *r)
{
	struct io_uring_sqe was = r->sqes[*r->tail & *r->mask];
	unsigned at = *r->tail & *r->mask;
	int n = submit(r, 1);

	if (n != 1)
		return -10000 + n;
	if (memcmp(&was, &r->sqes[at], sizeof was))
		printf("the request has changed\n");
	return next(r).res;
}

static inline void say(const char *what, int result, const char *bytes)
{
	printf("%s: %d %.20s\n", what, result, bytes ? bytes : "");
	fflush(stdout);
}
