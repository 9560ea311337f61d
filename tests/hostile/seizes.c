/*
 * A master that counts, and a worker that would trace it.
 *
 *     seizes dropped        the worker has dropped to another user: the kernel refuses
 *     seizes malformed      it requests options that the kernel does not know
 *     seizes attaches       as dropped, by PTRACE_ATTACH
 *     seizes may            it may
 */
#define _GNU_SOURCE
#include <errno.h>
#include <grp.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

volatile int counter;

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "may";
	pid_t master = getpid();
	int ends[2];
	char byte;
	if (pipe(ends))
		return 1;
	pid_t worker = fork();
	if (worker == 0) {
		int drops = !strcmp(how, "dropped") || !strcmp(how, "attaches");
		if (read(ends[0], &byte, 1) != 1)
			_exit(9);
		if (drops && (setgroups(0, NULL) || setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534)))
			_exit(8);
		long address = !strcmp(how, "malformed");
		long result = ptrace(!strcmp(how, "attaches") ? PTRACE_ATTACH : PTRACE_SEIZE, master, address, 0);
		printf("worker: %ld, %s\n", result, result ? strerror(errno) : "traces");
		fflush(stdout);
		_exit(0);
	}
	for (int i = 0; i < 100; i++)
		counter++;
	if (write(ends[1], "x", 1) != 1 || waitpid(worker, NULL, 0) != worker)
		return 1;
	for (int i = 0; i < 100; i++)
		counter++;
	printf("master: %d\n", counter);
	return 0;
}
