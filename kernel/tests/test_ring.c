// SPDX-License-Identifier: GPL-2.0 OR MIT
/* The event ring: order, loss, blocking, polling, many writers. */
#include "test.h"

#include <sys/epoll.h>
#include <sys/resource.h>
#include <time.h>

static int file;

enum { WRITERS = 4, EACH = 150 };

static struct space *ready(uint32_t records, uint32_t watermark, uint32_t latency)
{
	struct space *space = space_make(WRITERS);

	file = memfd_create("file", 0);
	EXPECT_EQ(ftruncate(file, 1), 0);
	EXPECT_EQ(ring(space, records, watermark, latency), 0);
	EXPECT_EQ(set(space, space->guarded, space->size, ULPF_RO), 0);
	return space;
}

/* Each is one event. */
static void touch(struct space *space, int times)
{
	while (times--)
		EXPECT_EQ(pread(file, space->guarded + 1, 1, 0), 1);
}

TEST(losses_are_counted)
{
	struct space *space = ready(64, 1, 0);
	struct ulpf_event event[100];
	int i;

	touch(space, 10);
	EXPECT_EQ(events(space, event, 4), 4);
	touch(space, 100);
	EXPECT_EQ(events(space, event, 100), 65);
	EXPECT_EQ(event[0].type, ULPF_EVENT_LOST);
	EXPECT_EQ(event[0].addr, 110 - 4 - 64);
	for (i = 1; i < 65; i++)
		EXPECT_EQ(event[i].stamp, 46 + i);
	EXPECT_EQ(events(space, event, 100), 0);
	touch(space, 1);
	EXPECT_EQ(events(space, event, 100), 1);
	EXPECT_EQ(event[0].stamp, 111);
}

TEST(mapped_ring_shows_the_same)
{
	struct space *space = ready(128, 1, 0);
	struct ulpf_ring_header *header = mmap(NULL, 4096 + 128 * 64, PROT_READ, MAP_SHARED, space->fd, ULPF_MAP_RING);
	struct ulpf_event *slot, event[200];
	int i;

	EXPECT(header != MAP_FAILED);
	EXPECT_EQ(header->version, ULPF_VERSION);
	EXPECT_EQ(header->records, 128);
	EXPECT_EQ(header->length, 4096 + 128 * 64);
	slot = (void *)((char *)header + header->data_offset);
	touch(space, 200);
	EXPECT_EQ(header->head, 200);
	EXPECT_EQ(header->dropped, 0);
	for (i = 72; i < 200; i++)
		EXPECT_EQ(slot[i % 128].stamp, i + 1);
	EXPECT_EQ(events(space, event, 200), 129);
	EXPECT_EQ(memcmp(&event[1], &slot[72], 64), 0);
	EXPECT_ERRNO(mprotect(header, 4096, PROT_READ | PROT_WRITE), EACCES);
}

static volatile bool done;
static volatile long got;

static void *reading(void *arg)
{
	struct space *space = arg;
	struct ulpf_event event[64];
	ssize_t bytes = read(space->fd, event, sizeof(event));

	got = bytes;
	done = true;
	return NULL;
}

TEST(reader_blocks_until_the_watermark)
{
	struct space *space = ready(64, 8, 0);
	pthread_t thread;
	int i;

	EXPECT_EQ(pthread_create(&thread, NULL, reading, space), 0);
	touch(space, 7);
	usleep(200000);
	EXPECT(!done);
	touch(space, 1);
	for (i = 0; i < 500 && !done; i++)
		usleep(10000);
	EXPECT(done);
	EXPECT_EQ(got, 8 * 64);
}

TEST(reader_waits_no_longer_than_the_latency)
{
	struct space *space = ready(64, 32, 50000);
	pthread_t thread;
	int i;

	EXPECT_EQ(pthread_create(&thread, NULL, reading, space), 0);
	usleep(100000);
	EXPECT(!done);
	touch(space, 3);
	for (i = 0; i < 500 && !done; i++)
		usleep(10000);
	EXPECT(done);
	EXPECT_EQ(got, 3 * 64);
	/* Also one that comes when they are there. */
	done = false;
	touch(space, 2);
	EXPECT_EQ(pthread_create(&thread, NULL, reading, space), 0);
	for (i = 0; i < 500 && !done; i++)
		usleep(10000);
	EXPECT(done);
	EXPECT_EQ(got, 2 * 64);
}

static void interrupted(int number)
{
	(void)number;
}

TEST(reader_is_interrupted)
{
	struct space *space = ready(64, 8, 0);
	struct sigaction action = { .sa_handler = interrupted };
	struct itimerval soon = { .it_value = { 0, 100000 } };
	struct ulpf_event event;

	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &soon, NULL);
	EXPECT_ERRNO(read(space->fd, &event, sizeof(event)), EINTR);
}

TEST(polling)
{
	struct space *space = ready(64, 4, 0);
	struct pollfd poll_fd = { .fd = space->fd, .events = POLLIN };
	struct epoll_event what = { .events = EPOLLIN | EPOLLET };
	struct ulpf_event event[8];
	int set = epoll_create1(0);

	EXPECT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, space->fd, &what), 0);
	EXPECT_EQ(poll(&poll_fd, 1, 0), 0);
	touch(space, 3);
	EXPECT_EQ(poll(&poll_fd, 1, 0), 0);
	EXPECT_EQ(epoll_wait(set, &what, 1, 0), 0);
	touch(space, 1);
	EXPECT_EQ(poll(&poll_fd, 1, 0), 1);
	EXPECT_EQ(poll_fd.revents, POLLIN);
	EXPECT_EQ(epoll_wait(set, &what, 1, 1000), 1);
	EXPECT_EQ(events(space, event, 8), 4);
	EXPECT_EQ(poll(&poll_fd, 1, 0), 0);
}

/* Each on a page of its own: one that is open for a call is open for the others'. */
static void *writing(void *arg)
{
	int i;

	for (i = 0; i < EACH; i++)
		EXPECT_EQ(pread(file, arg, 1, 0), 1);
	return NULL;
}

/* No event is read twice, and none is missing without a count. */
TEST(many_writers)
{
	struct space *space = ready(64, 16, 1000);
	pthread_t thread[WRITERS];
	struct ulpf_event event[64];
	uint64_t next = 1, lost = 0, seen = 0;
	const struct ulpf_ring_header *header = mmap(NULL, 4096, PROT_READ, MAP_SHARED, space->fd, ULPF_MAP_RING);
	int i;

	for (i = 0; i < WRITERS; i++)
		EXPECT_EQ(pthread_create(&thread[i], NULL, writing, space->guarded + i * PAGE), 0);
	/* First whether all is done, then whether all is read. */
	while (counts(space).kernel_writes < WRITERS * EACH || seen + lost < header->head) {
		ssize_t n = events(space, event, 64);

		/* A spinning reader would keep the writers from their processor. */
		if (!n)
			usleep(1000);
		for (i = 0; i < n; i++) {
			if (event[i].type == ULPF_EVENT_LOST) {
				lost += event[i].addr;
				next += event[i].addr;
				continue;
			}
			EXPECT_EQ(event[i].stamp, next);
			EXPECT_EQ(event[i].type, ULPF_EVENT_KERNEL_WRITE);
			EXPECT_EQ(event[i].pid, getpid());
			next++;
			seen++;
		}
	}
	for (i = 0; i < WRITERS; i++)
		pthread_join(thread[i], NULL);
	EXPECT_EQ(seen + lost + header->dropped, WRITERS * EACH);
}
