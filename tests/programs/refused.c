/* Lengths of buffers that the kernel refuses, and what it says. The buffers are on the heap. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static int pair[2];

static void say(const char *call, long result)
{
	printf("%s: %ld, %s\n", call, result, result < 0 ? strerrorname_np(errno) : "no error");
}

int main(void)
{
	char *name = malloc(256);
	socklen_t *length = malloc(sizeof *length);
	struct iovec part = { .iov_base = malloc(16), .iov_len = 16 };
	struct msghdr message = { .msg_name = name, .msg_namelen = -1, .msg_iov = &part, .msg_iovlen = 1 };
	struct timeval *moment = calloc(1, sizeof *moment);
	fd_set *set = calloc(1, sizeof *set);

	setvbuf(stdout, NULL, _IOLBF, 0);
	memset(name, 0, 256);
	if (socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) || write(pair[1], "1", 1) != 1 || write(pair[1], "2", 1) != 1)
		return 99;
	*length = -1;
	say("getsockname", getsockname(pair[0], (void *)name, length));
	say("getpeername", getpeername(pair[0], (void *)name, length));
	say("getsockopt", getsockopt(pair[0], SOL_SOCKET, SO_TYPE, name, length));
	say("recvfrom", recvfrom(pair[0], part.iov_base, 16, MSG_DONTWAIT, (void *)name, length));
	say("accept", accept(pair[0], (void *)name, length));
	say("sendto", sendto(pair[0], name, 1, 0, (void *)name, -1));
	say("bind", bind(pair[0], (void *)name, -1));
	say("connect", connect(pair[0], (void *)name, -1));
	say("setsockopt", setsockopt(pair[0], SOL_SOCKET, SO_KEEPALIVE, name, -1));
	say("recvmsg", recvmsg(pair[0], &message, MSG_DONTWAIT));
	message.msg_namelen = -1;
	say("sendmsg", sendmsg(pair[0], &message, 0));
	say("select", syscall(SYS_select, -1, set, NULL, NULL, moment));
	say("poll", syscall(SYS_poll, name, -1, 0));
	say("getgroups", syscall(SYS_getgroups, -1, name));
	say("epoll_wait", syscall(SYS_epoll_wait, pair[0], name, -1, 0));
	say("read", syscall(SYS_read, pair[0], (long)name, -1L));
	return 0;
}
