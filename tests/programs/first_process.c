/* The first process of a PID namespace of its own: it ends all others, and waits until /proc shows none and kill(2) finds
 * none, as those of containers do. Exit status 77: there may be no namespace. */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

int counter;

/* Number of other processes in /proc, read with a buffer of `size` bytes. */
static int others(size_t size)
{
	char *buffer = malloc(size);
	int folder = open("/proc", O_RDONLY | O_DIRECTORY), count = 0;
	long n;

	while ((n = syscall(SYS_getdents64, folder, buffer, size)) > 0)
		for (long at = 0; at < n; at += *(unsigned short *)(buffer + at + 16)) {
			const char *name = buffer + at + 19;

			count += isdigit((unsigned char)*name) && atoi(name) != 1;
		}
	close(folder);
	free(buffer);
	return n < 0 ? -1 : count;
}

static int first(void)
{
	int status;
	pid_t child;

	mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL);
	if (mount("proc", "/proc", "proc", 0, NULL))
		return 77;
	child = fork();
	if (!child) {
		for (;;)
			pause();
	}
	printf("a child is there: %d\n", others(32768) > 0 && !kill(-1, 0));
	printf("kill: %d\n", kill(-1, SIGKILL));
	printf("the child: %d", waitpid(child, &status, 0) == child);
	printf(", by signal %d\n", WTERMSIG(status));
	for (int i = 0; others(32768) || others(64); i++) {
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
		if (i == 100) {
			puts("somebody is still there");
			return 3;
		}
		usleep(50000);
	}
	printf("kill: %d", kill(-1, 0));
	printf(", %s\n", strerror(errno));
	/* It is watched to its end. */
	for (int i = 0; i < 100; i++) {
		char *block = malloc(300000);

		memset(block, i, 16);
		counter++;
		free(block);
	}
	puts("alone");
	return 0;
}

int main(void)
{
	int status;
	pid_t child;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID))
		return 77;
	child = fork();
	if (!child)
		return first();
	waitpid(child, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 99;
}
