/* Children that become another program at once: launch HOW PROGRAM [ARGUMENT...].
 *
 *     vfork, spawn, spawnp, system, popen   make the child so.
 *     missing     A vfork child whose first exec fails.
 *     exit        A vfork child that only stores, and exits with 7.
 *     threads     Four threads that spawn it at once.
 *     again N     Spawns itself, N generations deep.
 *
 * The parent waits, counts, and prints how the child ended. */
#define _GNU_SOURCE
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
int launched;
int generation = -1;
int in_child;
static char **command;

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

/* Runs in the vfork child. */
__attribute__((noinline)) void before_exec(int how)
{
	in_child++;
	in_child += how;
}

static int ended(pid_t child)
{
	int status;

	if (child < 0 || waitpid(child, &status, 0) != child)
		return -1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static pid_t vforked(const char *how)
{
	char *nothing[] = { "nothing", NULL };
	pid_t child = vfork();

	if (child != 0)
		return child;
	before_exec(2);
	if (strcmp(how, "exit") == 0)
		_exit(7);
	if (strcmp(how, "missing") == 0)
		execv("/nonexistent/program", nothing);
	execv(command[0], command);
	_exit(127);
}

static pid_t spawned(char **arguments)
{
	pid_t child;

	return posix_spawn(&child, arguments[0], NULL, NULL, arguments, environ) ? -1 : child;
}

static pid_t spawned_somewhere(void)
{
	char *name = strrchr(command[0], '/');
	char path[4096];
	pid_t child;

	/* Two execs that fail, and one that does not. */
	snprintf(path, sizeof path, "/nonexistent:/proc/self:%.*s", (int)(name - command[0]), command[0]);
	setenv("PATH", path, 1);
	return posix_spawnp(&child, name + 1, NULL, NULL, command, environ) ? -1 : child;
}

static void *spawner(void *status)
{
	*(int *)status = ended(spawned(command));
	return NULL;
}

int main(int argc, char **argv)
{
	const char *how = argc > 2 ? argv[1] : "";
	pthread_t threads[4];
	int statuses[4];
	int status = -1;
	FILE *pipe;

	command = argv + 2;
	ready();
	if (strcmp(how, "again") == 0) {
		char number[12];
		char *next[] = { "/proc/self/exe", "again", number, NULL };

		generation = atoi(argv[2]);
		snprintf(number, sizeof number, "%d", generation - 1);
		return generation > 0 ? ended(spawned(next)) + 1 : 0;
	}
	if (strcmp(how, "spawn") == 0) {
		status = ended(spawned(command));
	} else if (strcmp(how, "spawnp") == 0) {
		status = ended(spawned_somewhere());
	} else if (strcmp(how, "system") == 0) {
		status = WEXITSTATUS(system(argv[2]));
	} else if (strcmp(how, "popen") == 0) {
		pipe = popen(argv[2], "r");
		while (fgetc(pipe) != EOF)
			;
		status = WEXITSTATUS(pclose(pipe));
	} else if (strcmp(how, "threads") == 0) {
		for (int i = 0; i < 4; i++)
			pthread_create(&threads[i], NULL, spawner, &statuses[i]);
		status = 0;
		for (int i = 0; i < 4; i++) {
			pthread_join(threads[i], NULL);
			status |= statuses[i];
		}
	} else {
		status = ended(vforked(how));
	}
	launched++;
	printf("launch: %s, status %d, in child %d\n", how, status, in_child);
	return 0;
}
