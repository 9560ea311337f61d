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
