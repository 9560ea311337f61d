// Other programs: execve, vfork with its shared memory, posix_spawn.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static int failures;
static volatile int told;

static void expect(const char *what, int got, int wanted)
{
	if (got != wanted) {
		printf("%s: %d, not %d\n", what, got, wanted);
		failures++;
	}
}

static int status_of(pid_t pid)
{
	int status = -1;

	waitpid(pid, &status, 0);
	return status;
}

// Checks the state after exec: the process number, descriptors, ignored and blocked signals.
static int after(char **argv)
{
	sigset_t mask;

	sigprocmask(SIG_BLOCK, NULL, &mask);
	expect("number", getpid(), atoi(argv[2]));
	expect("kept", fcntl(atoi(argv[3]), F_GETFD), 0);
	expect("closed", fcntl(atoi(argv[4]), F_GETFD), -1);
	expect("ignored", signal(SIGUSR1, SIG_DFL) == SIG_IGN, 1);
	expect("handled", signal(SIGUSR2, SIG_DFL) == SIG_DFL, 1);
	expect("blocked", sigismember(&mask, SIGHUP), 1);
	expect("environment", strcmp(getenv("WHERE"), "here"), 0);
	expect("write", write(atoi(argv[3]), "x", 1), 1);
	return failures ? 1 : 42;
}

static void nothing(int number)
{
	(void)number;
}

static void in_child(const char *name, int keep, int close)
{
	char numbers[3][16];
	char *environment[] = { "WHERE=here", NULL };
	sigset_t mask;

	signal(SIGUSR1, SIG_IGN);
	signal(SIGUSR2, nothing);
	sigemptyset(&mask);
	sigaddset(&mask, SIGHUP);
	sigprocmask(SIG_BLOCK, &mask, NULL);
	snprintf(numbers[0], 16, "%d", getpid());
	snprintf(numbers[1], 16, "%d", keep);
	snprintf(numbers[2], 16, "%d", close);
	execve(name, (char *[]){ "other", "after", numbers[0], numbers[1], numbers[2], NULL }, environment);
	_exit(9);
}

int main(int argc, char **argv)
{
	char *again[] = { argv[0], "quiet", NULL }, byte = 0;
	int ends[2], closing, spawned;
	pid_t pid;

	if (argc > 1 && !strcmp(argv[1], "after"))
		return after(argv);
	if (argc > 1 && !strcmp(argv[1], "quiet"))
		return 5;
	if (argc > 1 && !strcmp(argv[1], "script"))
		execl(argv[2], argv[2], NULL);
	if (argc > 1 && !strcmp(argv[1], "become"))
		execl("/proc/self/exe", "family", "quiet", NULL);
	if (pipe(ends))
		return 1;
	closing = open("/dev/null", O_RDONLY | O_CLOEXEC);
	pid = fork();
	if (!pid)
		in_child("/proc/self/exe", ends[1], closing);
	expect("after fork", status_of(pid), 42 << 8);
	expect("its byte", read(ends[0], &byte, 1), 1);

	// The parent waits, and sees what its child has stored.
	pid = vfork();
	if (!pid) {
		usleep(20000);
		told = 7;
		_exit(3);
	}
	expect("vfork", told, 7);
	expect("its end", status_of(pid), 3 << 8);
	pid = vfork();
	if (!pid) {
		told = 8;
		execv(argv[0], again);
		_exit(9);
	}
	expect("before exec", told, 8);
	expect("after exec", status_of(pid), 5 << 8);
	pid = vfork();
	if (!pid) {
		execv("/nonexistent", again);
		told = errno;
		_exit(1);
	}
	expect("what is not there", told, ENOENT);
	status_of(pid);

	expect("spawn", spawned = posix_spawn(&pid, argv[0], NULL, NULL, again, environ), 0);
	expect("spawned", status_of(pid), 5 << 8);
	expect("spawn nothing", posix_spawn(&pid, "/nonexistent", NULL, NULL, again, environ), ENOENT);
	puts(failures ? "family: failed" : "family: done");
	return failures != 0;
}
