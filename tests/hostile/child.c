/*
 * A daemon that separates privileges: a child that has dropped to another user tries what a broken-into one would,
 * while the parent goes on storing.
 *
 *     child maps            the child writes its /proc/self/maps to stdout, at its first instruction, and ends
 *     child overwrite [UID] it overwrites all memory that it shares with its parent, as that user
 *     child grandchild      its child does, after the child has forked again
 *     child exec FILE       the child executes FILE
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

volatile long counter;
volatile long *heap;

static char maps[1 << 20];

/* No allocation, no stdio: nothing changes before the file is read. */
static long read_maps(void)
{
	int fd = open("/proc/self/maps", O_RDONLY);
	long total = 0, n;
	while ((n = read(fd, maps + total, sizeof maps - 1 - total)) > 0)
		total += n;
	close(fd);
	maps[total] = 0;
	return total;
}

/* Every shared mapping that may be written is filled with ud2, unless it is the program's own. */
static int overwrite_what_is_shared(const void *own)
{
	int found = 0;
	read_maps();
	for (char *line = maps; *line; line = strchr(line, '\n') + 1) {
		unsigned long start, end;
		char prot[5];
		if (sscanf(line, "%lx-%lx %4s", &start, &end, prot) != 3 || prot[3] != 's' || start == (unsigned long)own)
			continue;
		found++;
		fprintf(stderr, "shared: %.*s\n", (int)strcspn(line, "\n"), line);
		if (prot[1] != 'w')
			continue;
		for (unsigned long at = start; at < end && at < start + (64 << 20); at += 2)
			memcpy((void *)at, "\x0f\x0b", 2);
	}
	return found;
}

static void work(int rounds)
{
	for (int i = 0; i < rounds; i++) {
		counter++;
		heap[i % 512]++;
	}
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "maps";
	heap = calloc(512, sizeof *heap);
	work(1000); /* sites are known, and some are patched */
	int status = 0;
	pid_t child = fork();
	if (child == 0) {
		if (!strcmp(what, "maps")) {
			long n = read_maps();
			_exit(write(1, maps, n) == n ? 0 : 9);
		}
		if (!strcmp(what, "exec"))
			execl(argv[2], argv[2], argc > 3 ? argv[3] : NULL, NULL);
		if (!strcmp(what, "overwrite")) {
			if (argc > 2 && setuid(atoi(argv[2])))
				_exit(8);
			_exit(overwrite_what_is_shared(NULL) ? 1 : 0);
		}
		if (!strcmp(what, "grandchild")) {
			work(10);
			pid_t grandchild = fork();
			if (grandchild == 0)
				_exit(overwrite_what_is_shared(NULL) ? 1 : 0);
			waitpid(grandchild, &status, 0);
			_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 7);
		}
		_exit(6);
	}
	work(100000);
	waitpid(child, &status, 0);
	work(100000);
	fprintf(stderr, "child %d, counter %ld, heap %ld\n", WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), counter, heap[0]);
	return 0;
}
