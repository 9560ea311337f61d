/* fork(2). */
#include "checks.h"

CASE(forks)
{
	target = pages(3);
	memset((void *)target, 'p', 3 * PAGE);
	long id = insert_watchpoint((void *)(target + PAGE), PAGE, ULPF_WRITE);
	OK(id);
	for (int round = 0; round < 20; round++) {
		pid_t child = fork();
		if (child == 0) {
			/* Private, unwatched; and it may watch for itself. */
			for (int i = 0; i < 3; i++)
				target[i * PAGE] = 'c';
			struct ulpf_counts c;
			if (ulpf_watchpoint_counts(id, &c) == 0)
				_exit(2);
			long mine = insert_watchpoint((void *)(target + 8), 1, ULPF_WRITE);
			if (mine < 0)
				_exit(3);
			target[8] = 'd';
			if (counts(mine).hits != 1 || target[PAGE] != 'c' || target[PAGE + 1] != 'p')
				_exit(4);
			_exit(0);
		}
		target[PAGE + 9] = round;
		int status;
		waitpid(child, &status, 0);
		EQ(status, 0);
		for (int i = 0; i < 3; i++)
			EQ(target[i * PAGE], 'p');
	}
	EQ(counts(id).hits, 20);
}

/* Inodes of the files that generated code lies in, of this process. */
static int code_files(unsigned long *inodes, int most)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[512];
	int n = 0;
	while (maps && fgets(line, sizeof line, maps)) {
		unsigned long inode;
		if (strstr(line, "ulpf-code") && n < most &&
		    sscanf(line, "%*s %*s %*s %*s %lu", &inode) == 1)
			inodes[n++] = inode;
	}
	if (maps)
		fclose(maps);
	return n;
}

/* The parent does not execute code that its child writes. */
CASE(forks_have_code_of_their_own)
{
	target = pages(1);
	long id = insert_watchpoint((void *)target, 8, ULPF_WRITE);
	OK(id);
	target[0] = 1;
	unsigned long parents[8];
	int of_parent = code_files(parents, 8);
	EQ(of_parent, 2);
	pid_t child = fork();
	if (child == 0) {
		unsigned long own[8];
		int of_child = code_files(own, 8);
		for (int i = 0; i < of_child; i++)
			for (int j = 0; j < of_parent; j++)
				if (own[i] == parents[j])
					_exit(2);
		long mine = insert_watchpoint((void *)target, 8, ULPF_WRITE);
		target[0] = 2;
		_exit(mine >= 0 && counts(mine).hits == 1 ? 0 : 3);
	}
	int status;
	waitpid(child, &status, 0);
	EQ(status, 0);
	target[0] = 3;
	EQ(counts(id).hits, 2);
}
