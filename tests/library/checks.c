/* Runs the cases: `checks` names them, `checks NAME` runs one, `library_BACKEND` all of them. */
#include "checks.h"

volatile long calls, caught;
volatile char *target;
sigjmp_buf back;

char *pages(int n)
{
	char *at = mmap(NULL, n * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(at != MAP_FAILED, "mmap");
	return at;
}

struct ulpf_counts counts(long id)
{
	struct ulpf_counts c = { 0, 0, 0 };
	OK(ulpf_watchpoint_counts(id, &c));
	return c;
}

struct ulpf_stats stats(void)
{
	struct ulpf_stats s = { 0 };
	ulpf_statistics(&s);
	return s;
}

void count_call(const struct ulpf_hit *hit, void *data)
{
	(void)hit, (void)data;
	__atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED);
}

extern const struct check *const __start_checks[], *const __stop_checks[];

/* One case in a process of its own, with what it says. */
static int one(const char *name, char *said, size_t room)
{
	int fds[2], status;
	size_t got = 0;
	ssize_t n;

	CHECK(pipe(fds) == 0, "pipe");
	pid_t child = fork();
	if (child == 0) {
		dup2(fds[1], 1);
		dup2(fds[1], 2);
		alarm(400); /* a simulated machine, on cores that are busy, takes minutes for some */
		execl("/proc/self/exe", "checks", name, NULL);
		_exit(127);
	}
	close(fds[1]);
	while ((n = read(fds[0], said + got, room - 1 - got)) > 0)
		got += n;
	said[got] = 0;
	close(fds[0]);
	waitpid(child, &status, 0);
	if (WIFSIGNALED(status))
		printf("# signal %d\n", WTERMSIG(status));
	return status == 0;
}

/* In a machine of its own, without a test runner: runs all cases, with the back end that the program's name ends with. */
static int all(const char *backend)
{
	static char said[4096];
	int number = 0, bad = 0;

	setenv("ULPF_BACKEND", backend, 1);
	for (const struct check *const *c = __start_checks; c < __stop_checks; c++) {
		int well = one((*c)->name, said, sizeof(said));
		int skipped = !strncmp(said, "skip: ", 6);
		if (!well || skipped)
			for (char *line = strtok(said, "\n"); line; line = strtok(NULL, "\n"))
				printf("# %s\n", skipped ? line + 6 : line);
		printf("%sok %d %s%s\n", well ? "" : "not ", ++number, (*c)->name, skipped ? " # SKIP" : "");
		bad |= !well;
	}
	return bad;
}

int main(int argc, char **argv)
{
	const char *own = strrchr(argv[0], '/');

	setvbuf(stdout, NULL, _IONBF, 0);
	own = own ? own + 1 : argv[0];
	if (argc == 1 && !strncmp(own, "library_", 8))
		return all(own + 8);
	for (const struct check *const *c = __start_checks; c < __stop_checks; c++) {
		if (argc == 1)
			printf("%s\n", (*c)->name);
		else if (!strcmp(argv[1], (*c)->name)) {
			(*c)->run();
			printf("ok\n");
			return 0;
		}
	}
	return argc == 1 ? 0 : 2;
}
