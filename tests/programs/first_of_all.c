/* A child is the first process of a place of its own (CLONE_NEWPID), so orphans there become its children; another one asks
 * for orphans (PR_SET_CHILD_SUBREAPER) and executes this program again. Neither has a child to wait for. */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static int wait_for_nobody(const char *who)
{
	pid_t ended;

	alarm(20); /* for ever, if it has a child of which it does not know */
	ended = wait(NULL);
	printf("%s: %d, %s\n", who, ended, strerrorname_np(errno));
	fflush(stdout);
	return 0;
}

int main(int argc, char **argv)
{
	int status = 0;

	(void)argc;
	if (strcmp(argv[0], "again") == 0)
		return wait_for_nobody("again");
	if (fork() == 0) {
		prctl(PR_SET_CHILD_SUBREAPER, 1);
		execl("/proc/self/exe", "again", NULL);
	}
	wait(&status);
	if (unshare(CLONE_NEWPID) && unshare(CLONE_NEWUSER | CLONE_NEWPID))
		return 77;
	if (fork() == 0)
		_exit(wait_for_nobody(getpid() == 1 ? "the first" : "another"));
	return wait(&status) < 0 || status;
}
