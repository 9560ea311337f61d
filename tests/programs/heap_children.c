/* Errors of the heap in children: forked ones, those of these, and what they execute. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char *parents;

static __attribute__((noinline)) void forked(void)
{
	parents[10] = 1;
	free(parents);
	volatile char *own = malloc(5);
	own[5] = 1;
}

static __attribute__((noinline)) void forked_twice(void)
{
	if (fork() == 0) {
		parents[11] = 1;
		_exit(0);
	}
	wait(NULL);
	free(parents);
	free(parents);
}

static __attribute__((noinline)) void executed(void) { parents[12] = 1; }

static void run(void (*what)(void), char *self)
{
	if (fork() == 0) {
		if (what)
			what();
		else
			execl(self, self, "executed", NULL);
		exit(0);
	}
	wait(NULL);
}

int main(int count, char **word)
{
	parents = malloc(10);
	strcpy(parents, "a parent");
	if (count > 1 && strcmp(word[1], "executed") == 0)
		executed();
	if (count == 1) {
		char line[4096];
		run(forked, word[0]);
		run(forked_twice, word[0]);
		run(NULL, word[0]);
		snprintf(line, sizeof line, "%s executed", word[0]);
		system(line);
		puts(parents);
	}
	free(parents);
	return 0;
}
