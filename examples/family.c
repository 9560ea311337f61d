/* Generations of processes: family N [sleep]. Each forks the next one, waits for it, and says with
 * its exit status how many were below it. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

int depth = -1;

int main(int argc, char **argv)
{
	int generations = argc > 1 ? atoi(argv[1]) : 3;
	int status;
	pid_t child;

	for (;;) {
		depth++;
		if (depth == generations) {
			if (argc > 2) {
				printf("%d\n", getpid());
				fflush(stdout);
				pause();
			}
			return 0;
		}
		child = fork();
		if (child != 0)
			break;
	}
	waitpid(child, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) + 1 : 99;
}
