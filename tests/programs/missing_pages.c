/* A thread serves with userfaultfd(2) what another one touches: memory that is copied there, memory that is moved there, and
 * what mremap(2) leaves behind. All of it is heap, as are the requests. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE 4096L
#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

/* Headers before Linux 6.8 lack it. */
struct moved { unsigned long to, from, len, mode; long moved; };
#define MOVE _IOWR(UFFDIO, 0x05, struct moved)

static int fd;
static char *source;
static int moves, can_move;
static long served;

static char *page(void)
{
	return mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static void *serve(void *unused)
{
	struct uffd_msg *message = malloc(sizeof *message);
	struct uffdio_copy *copy = calloc(1, sizeof *copy);
	struct moved *moved = calloc(1, sizeof *moved);
	unsigned long to;
	int result;

	(void)unused;
	if (read(fd, message, sizeof *message) != sizeof *message || message->event != UFFD_EVENT_PAGEFAULT)
		return NULL;
	to = message->arg.pagefault.address & ~(PAGE - 1);
	*copy = (struct uffdio_copy){ .dst = to, .src = (unsigned long)source, .len = PAGE };
	*moved = (struct moved){ .to = to, .from = (unsigned long)source, .len = PAGE };
	result = moves ? ioctl(fd, MOVE, moved) : ioctl(fd, UFFDIO_COPY, copy);
	if (result)
		printf("serve: %s\n", strerrorname_np(errno));
	served = moves ? moved->moved : copy->copy;
	return NULL;
}

static int watch(char *at)
{
	struct uffdio_api *api = calloc(1, sizeof *api);
	struct uffdio_register *request = calloc(1, sizeof *request);

	fd = syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
	api->api = UFFD_API;
	*request = (struct uffdio_register){ .range = { (unsigned long)at, PAGE }, .mode = UFFDIO_REGISTER_MODE_MISSING };
	if (fd < 0 || ioctl(fd, UFFDIO_API, api) || ioctl(fd, UFFDIO_REGISTER, request))
		return -1;
	can_move = api->features >> 16 & 1; /* UFFD_FEATURE_MOVE */
	printf("may be copied to: %d\n", (int)(request->ioctls >> _UFFDIO_COPY & 1));
	return 0;
}

static void touch(const char *what, char *at)
{
	pthread_t thread;

	pthread_create(&thread, NULL, serve, NULL);
	printf("%s: %.9s\n", what, (char *)(at + *(volatile char *)at * 0));
	pthread_join(thread, NULL);
	printf("served %ld\n", served);
	strcpy(at, "written");
	printf("then: %s\n", at);
	close(fd);
}

int main(void)
{
	char *target, *old;

	setvbuf(stdout, NULL, _IOLBF, 0);
	for (moves = 0; moves <= can_move; moves++) {
		target = page();
		source = page();
		strcpy(source, moves ? "moved" : "copied");
		if (watch(target))
			return 77;
		touch("absent", target);
	}
	moves = 0;
	old = page();
	strcpy(old, "old");
	if (watch(old))
		return 77;
	source = mremap(old, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP);
	if (source == MAP_FAILED)
		return 2;
	printf("moved: %s\n", source);
	strcpy(source, "new");
	touch("left behind", old);
	return 0;
}
