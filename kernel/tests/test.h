/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * A test is TEST(name) { ... }. Each runs in a process of its own, with a time limit, and
 * fails by EXPECT or by dying; the program tells KTAP.
 */
#ifndef TEST_H
#define TEST_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ulpf.h>

#define PAGE 4096UL
#define LIMIT 60	/* seconds; a machine in a simulator on a busy machine */
#define SKIPPED 77

typedef void test_fn(void);
void test_add(const char *name, test_fn *run);
void test_note(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));

#define TEST(name)								\
	static void test_##name(void);						\
	__attribute__((constructor)) static void add_##name(void)		\
	{									\
		test_add(#name, test_##name);					\
	}									\
	static void test_##name(void)

#define EXPECT(condition)							\
	do {									\
		int error_ = errno;						\
		if (!(condition)) {						\
			test_note(__FILE__, __LINE__, "not so: %s (errno %d)", #condition, error_); \
			_exit(1);						\
		}								\
	} while (0)

#define EXPECT_EQ(left, right)							\
	do {									\
		long long left_ = (long long)(left), right_ = (long long)(right); \
		if (left_ != right_) {						\
			test_note(__FILE__, __LINE__, "%s is %lld (0x%llx), not %s, %lld", #left, left_, left_, #right, right_); \
			_exit(1);						\
		}								\
	} while (0)

/* The call fails, with this error. */
#define EXPECT_ERRNO(call, number)						\
	do {									\
		errno = 0;							\
		long long result_ = (long long)(call);				\
		int error_ = errno;						\
		if (result_ != -1 || error_ != (number)) {			\
			test_note(__FILE__, __LINE__, "%s: result %lld, errno %d (%s), not %s", #call, result_, error_, strerror(error_), #number); \
			_exit(1);						\
		}								\
	} while (0)

#define SKIP(why)								\
	do {									\
		test_note(__FILE__, __LINE__, "skip: %s", why);			\
		_exit(SKIPPED);							\
	} while (0)

/* The device, as a program uses it (device.c). */
struct space {
	int fd;
	char *guarded;
	char *alias;
	size_t size;
};

/* Entered by the machine: saves the registers, calls handle(), and returns. */
extern char entry[];
/* Called by handle() with each fault; the frame is unmodified. */
extern void (*volatile on_fault)(struct ulpf_frame *frame);
extern volatile unsigned long faults;
extern struct ulpf_frame last_frame;
/* The space whose alias the ready-made handlers use. */
extern struct space *volatile the_space;

int device(void);
struct space *space_make(size_t pages);
/* ... whose pages forbid stores, which the handler makes through the alias. */
struct space *space_closed(size_t pages);
int handler(struct space *space, void *at, uint32_t flags);
int apply(struct space *space, uint32_t op, const void *addr, size_t length, uint64_t arg);
int set(struct space *space, const void *addr, size_t length, unsigned int permission);
int ring(struct space *space, uint32_t records, uint32_t watermark, uint32_t latency_us);
ssize_t events(struct space *space, struct ulpf_event *event, size_t count);
struct ulpf_counts counts(struct space *space);
struct ulpf_page lookup(struct space *space, const void *addr);

/* Handlers. */
void open_page(struct ulpf_frame *frame);	/* permits everything on the page */
void store_byte(struct ulpf_frame *frame);	/* makes put()'s store through the alias */
void load_byte(struct ulpf_frame *frame);	/* makes get()'s load through the alias */

/* One instruction of two bytes each, so that handlers know what they interrupt. */
void put(char *to, char value);
char get(const char *from);

/* Replaces what a file of the kernel's says; whether it is there and takes it. */
bool file_set(const char *path, const char *text);

/* Runs in a child; its wait status. */
int in_child(test_fn *run);
#define EXPECT_SIGNAL(run, number)						\
	do {									\
		int status_ = in_child(run);					\
		if (!WIFSIGNALED(status_) || WTERMSIG(status_) != (number)) {	\
			test_note(__FILE__, __LINE__, "%s: status 0x%x, not killed by %s", #run, status_, #number); \
			_exit(1);						\
		}								\
	} while (0)

#endif
