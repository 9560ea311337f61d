/* exec: a process that becomes the same program again, from leg to leg, and then another one.
 *
 *   relay LEG [thread|wait|PROGRAM]
 *
 * LEG counts down. On the way: a failing exec, which must change nothing. With `thread` another
 * thread than the first calls exec; with `wait` the start is given by a line on stdin; at the end
 * PROGRAM is executed, if there is one. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int leg = 100;
int baton;
static char **arguments;

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

static void *next(void *unused)
{
	char number[12];
	char *again[] = { arguments[0], number, arguments[2], NULL };

	snprintf(number, sizeof number, "%d", leg - 1);
	execv("/proc/self/exe", again);
	perror("relay: exec");
	exit(1);
	return unused;
}

int main(int argc, char **argv)
{
	char *nothing[] = { "nothing", NULL };
	const char *what = argc > 2 ? argv[2] : "";
	pthread_t thread;

	if (strcmp(what, "wait") == 0) {
		getchar();
		argv[2] = "";
	}
	arguments = argv;
	leg = argc > 1 ? atoi(argv[1]) : 1;
	ready();
	baton = 10 + leg;
	if (execv("/nonexistent/program", nothing) != -1 || errno != ENOENT)
		return 2;
	baton++;
	printf("relay: leg %d, baton %d\n", leg, baton);
	fflush(stdout);
	if (leg > 0 && strcmp(what, "thread") == 0) {
		pthread_create(&thread, NULL, next, NULL);
		pthread_join(thread, NULL);
	} else if (leg > 0) {
		next(NULL);
	} else if (*what == '/') {
		execv(what, argv + 2);
	}
	return baton;
}
