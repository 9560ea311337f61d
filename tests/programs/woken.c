/* Children that wait in a call each. Their parent sees that they sleep, wakes them by a signal with a handler, and they say
 * what has become of the call. And the other way round. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

long counter; /* watched */
static int pipes[2], queue, sets, messages, word, file;

static void on_signal(int number)
{
	counter += number;
}

static long wait_in(int call)
{
	struct { long type; char text[64]; } *message = malloc(sizeof *message);
	struct timespec limit = { 20, 0 }, left;
	struct epoll_event event;
	struct pollfd entry = { .fd = pipes[0], .events = POLLIN };
	struct sembuf down = { .sem_num = 0, .sem_op = -1 };
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 10 };
	sigset_t set;
	siginfo_t info;
	fd_set fds;
	char *text = malloc(64);

	sigemptyset(&set);
	FD_ZERO(&fds);
	FD_SET(pipes[0], &fds);
	switch (call) {
	case 0: return epoll_wait(queue, &event, 1, -1);
	case 1: return read(pipes[0], text, 64);
	case 2: return msgrcv(messages, message, sizeof message->text, 1, 0);
	case 3: return semop(sets, &down, 1);
	case 4: return syscall(SYS_futex, &word, FUTEX_WAIT, 0, &limit, NULL, 0);
	case 5: return poll(&entry, 1, 20000);
	case 6: return select(pipes[0] + 1, &fds, NULL, NULL, NULL);
	case 7: return pause();
	case 8: return sigsuspend(&set);
	case 9: return nanosleep(&limit, &left);
	case 10: return fcntl(file, F_SETLKW, &lock);
	case 11:
		sigaddset(&set, SIGUSR2);
		return sigtimedwait(&set, &info, &limit);
	case 12: /* what is waited for comes, blocked */
		sigaddset(&set, SIGUSR1);
		sigprocmask(SIG_BLOCK, &set, NULL);
		return sigwaitinfo(&set, NULL);
	default: return -2;
	}
}

static char state_of(pid_t child)
{
	char name[64], text[512] = "";
	int fd;

	snprintf(name, sizeof name, "/proc/%d/stat", child);
	fd = open(name, O_RDONLY);
	if (fd < 0 || read(fd, text, sizeof text - 1) <= 0)
		return '?';
	close(fd);
	return strrchr(text, ')')[2];
}

/* A child sees that its parent sleeps, twice within a moment. */
static void wake_parent(void)
{
	struct timespec moment = { 0, 100000 };
	pid_t parent = getppid();

	for (int asleep = 0; asleep < 2; nanosleep(&moment, NULL))
		asleep = state_of(parent) == 'S' ? asleep + 1 : 0;
	kill(parent, SIGUSR1);
	_exit(0);
}

int main(void)
{
	struct sigaction action = { .sa_handler = on_signal };
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 10 };
	struct timespec moment = { 0, 1000000 };
	int status = 0, result = 0;
	pid_t child;

	setvbuf(stdout, NULL, _IOLBF, 0);
	sigaction(SIGUSR1, &action, NULL);
	file = fileno(tmpfile());
	queue = epoll_create1(0);
	sets = semget(IPC_PRIVATE, 1, 0600);
	messages = msgget(IPC_PRIVATE, 0600);
	if (pipe(pipes) || file < 0 || queue < 0 || sets < 0 || messages < 0 || fcntl(file, F_SETLK, &lock))
		return 99;
	for (int call = 0; call <= 12; call++) {
		fflush(stdout);
		child = fork();
		if (child == 0) {
			long got = wait_in(call);
			printf("call %2d: %ld, %s, handled %ld\n", call, got, got < 0 ? strerrorname_np(errno) : "no error", counter);
			_exit(0);
		}
		for (int asleep = 0; asleep < 3; nanosleep(&moment, NULL))
			asleep = state_of(child) == 'S' ? asleep + 1 : 0;
		if (kill(child, SIGUSR1))
			result = 2;
		alarm(30); /* it sleeps for ever if that was none of its own waits */
		if (waitpid(child, &status, 0) != child || status != 0)
			result = 3;
		alarm(0);
	}
	for (int call = 0; call <= 10; call++) {
		fflush(stdout);
		child = fork();
		if (child == 0)
			wake_parent();
		alarm(30);
		long got = wait_in(call == 10 ? 0 : call); /* the lock is free */
		printf("parent, call %2d: %ld, %s, handled %ld\n", call, got, got < 0 ? strerrorname_np(errno) : "no error", counter);
		if (waitpid(child, &status, 0) != child || status != 0)
			result = 5;
		alarm(0);
	}
	/* Killed as soon as they are there. */
	for (int number = SIGKILL; number <= SIGTERM; number++) {
		child = fork();
		if (child == 0)
			for (;;)
				pause();
		kill(child, number);
		if (waitpid(child, &status, 0) != child)
			result = 4;
		printf("signal %d: %d\n", number, WIFSIGNALED(status) ? WTERMSIG(status) : -1);
		if (number == SIGKILL)
			number = SIGUSR2 - 1;
	}
	semctl(sets, 0, IPC_RMID);
	msgctl(messages, IPC_RMID, NULL);
	return result;
}
