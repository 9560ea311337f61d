/* fork, vfork, posix_spawn, system: the children live their own lives, unwatched. */
#define _GNU_SOURCE
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
int shared_count = 1;
char big_block[3 * 4096];

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

static int wait_for(pid_t child)
{
	int status;

	if (waitpid(child, &status, 0) != child)
		return -1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

int main(void)
{
	char *shell[] = { "sh", "-c", "exit 5", NULL };
	int codes[5];
	pid_t child;

	ready();
	memset(big_block, 7, sizeof big_block);
	child = fork();
	if (child == 0) {
		for (int i = 0; i < 1000; i++)
			shared_count++;
		memset(big_block, 9, sizeof big_block);
		_exit(shared_count == 1001 ? 3 : 99);
	}
	codes[0] = wait_for(child);
	shared_count++; /* still ours: 2 */

	child = vfork();
	if (child == 0)
		_exit(4);
	codes[1] = wait_for(child);

	if (posix_spawn(&child, "/bin/sh", NULL, NULL, shell, environ))
		return 2;
	codes[2] = wait_for(child);
	codes[3] = WEXITSTATUS(system("exit 6"));

	child = fork();
	if (child == 0)
		abort();
	codes[4] = wait_for(child);
	shared_count++;
	for (size_t i = 0; i < sizeof big_block; i++)
		if (big_block[i] != 7)
			codes[0] = 98;
	printf("children: count %d, codes %d %d %d %d %d\n", shared_count, codes[0], codes[1],
	       codes[2], codes[3], codes[4]);
	return 0;
}
