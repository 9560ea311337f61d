/* Two threads that work, as in spin.c, and one in each system call that waits for ever. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

volatile unsigned long rounds, other_rounds;
static int ends[2], sockets[2], listener;
static sem_t begun;

static void in_read(void) { char byte; read(ends[0], &byte, 1); }
static void in_readv(void) { char byte; struct iovec part = { &byte, 1 }; readv(ends[0], &part, 1); }
static void in_recv(void) { char byte; recv(sockets[0], &byte, 1, 0); }
static void in_accept(void) { struct sockaddr_storage from; socklen_t len = sizeof from; accept(listener, (struct sockaddr *)&from, &len); }
static void in_poll(void) { struct pollfd one = { ends[0], POLLIN, 0 }; poll(&one, 1, -1); }
static void in_select(void) { fd_set set; FD_ZERO(&set); FD_SET(ends[0], &set); select(ends[0] + 1, &set, NULL, NULL, NULL); }
static void in_futex(void) { int word = 0; syscall(SYS_futex, &word, FUTEX_WAIT, 0, NULL, NULL, 0); }
static void in_recvmsg(void) { char byte; struct iovec part = { &byte, 1 }; struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 }; recvmsg(sockets[0], &message, 0); }
static void in_pause(void) { pause(); }
static void in_sigwait(void) { sigset_t set; siginfo_t info; sigemptyset(&set); sigaddset(&set, SIGUSR2); sigwaitinfo(&set, &info); }
static void in_epoll(void)
{
	struct epoll_event event = { EPOLLIN, { 0 } };
	int fd = epoll_create1(0);
	epoll_ctl(fd, EPOLL_CTL_ADD, ends[0], &event);
	for (;;) /* (SIGCONT interrupts it) */
		epoll_wait(fd, &event, 1, -1);
}

static void (*const waits[])(void) = { in_read, in_readv, in_recv, in_accept, in_poll, in_select, in_futex, in_recvmsg, in_pause, in_sigwait, in_epoll };

_Noreturn static void *waiter(void *which)
{
	sem_post(&begun);
	for (;;)
		(*(void (*const *)(void))which)();
}

_Noreturn static void *other(void *argument)
{
	(void)argument;
	for (;;) {
		other_rounds++;
		usleep(1000);
	}
}

int main(void)
{
	enum { WAITS = sizeof waits / sizeof waits[0] };
	struct timespec nap = { 0, 200000 };
	volatile unsigned long *on_heap = calloc(8, sizeof *on_heap);
	sigset_t set;
	pthread_t thread;

	if (pipe(ends) || socketpair(AF_UNIX, SOCK_STREAM, 0, sockets))
		return 1;
	listener = socket(AF_INET, SOCK_STREAM, 0);
	listen(listener, 1);
	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	sem_init(&begun, 0, 0);
	for (int n = 0; n < WAITS; n++)
		pthread_create(&thread, NULL, waiter, (void *)&waits[n]);
	pthread_create(&thread, NULL, other, NULL);
	for (int n = 0; n < WAITS; n++)
		sem_wait(&begun);
	usleep(10000);
	puts("waits: up");
	fflush(stdout);
	for (time_t end = time(NULL) + 1200; time(NULL) < end; nanosleep(&nap, NULL)) {
		rounds++;
		on_heap[rounds % 8]++;
	}
	return 0;
}
