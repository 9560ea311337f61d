/* Ignores SIGUSR1 and SIGPIPE in calls that wait, then executes itself, which inherits that. Argument: "after". */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <sys/wait.h>

volatile int waits;

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int is_ignored(int signal)
{
	struct sigaction action;

	return sigaction(signal, NULL, &action) == 0 && action.sa_handler == SIG_IGN;
}

int main(int argc, char **argv)
{
	struct timespec second = { 1, 0 };
	int ends[2], status = 0;
	double before;
	char byte;

	if (argc > 1 && strcmp(argv[1], "after") == 0) {
		raise(SIGUSR1);
		printf("after: %d %d\n", is_ignored(SIGUSR1), is_ignored(SIGPIPE));
		return 0;
	}
	signal(SIGUSR1, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);
	if (pipe(ends) != 0)
		return 2;
	ready();
	waits = 1;
	before = now();
	printf("nanosleep %d", nanosleep(&second, NULL));
	printf(" %d\n", now() - before >= 1);
	waits = 2;
	before = now();
	printf("poll %d", poll(&(struct pollfd){ ends[0], POLLIN, 0 }, 1, 1000));
	printf(" %d\n", now() - before >= 1);
	waits = 3;
	close(ends[0]);
	printf("write %zd", write(ends[1], &byte, 1));
	printf(" %d\n", errno == EPIPE);
	fflush(stdout);
	signal(SIGCHLD, SIG_IGN);
	if (fork() == 0)
		_exit(raise(SIGUSR1));
	printf("wait %d", wait(&status));
	printf(" %d\n", errno == ECHILD);
	fflush(stdout);
	execl("/nowhere", argv[0], NULL); /* fails, and nothing has changed */
	raise(SIGUSR1);
	execl("/proc/self/exe", argv[0], "after", NULL);
	return 3;
}
