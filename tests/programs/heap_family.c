/* A process and its child, of which one makes an error of the heap, and all wait for ever after it:
 * heap_family self|parent|child|child_ends|executed|orphan. */
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void makes_an_error(void)
{
	volatile char *p = malloc(8);
	p[8] = 1;
}

int main(int count, char **word)
{
	const char *who = count > 1 ? word[1] : "";
	if (strcmp(who, "self") == 0)
		makes_an_error();
	else if (fork() == 0) {
		if (strcmp(who, "executed") == 0)
			execl(word[0], word[0], "self", NULL);
		/* (By then its parent has ended.) */
		if (strcmp(who, "orphan") == 0)
			usleep(300000);
		if (strcmp(who, "parent"))
			makes_an_error();
		if (strcmp(who, "child_ends") == 0)
			_exit(0);
		for (;;)
			pause();
	}
	if (strcmp(who, "orphan") == 0)
		return 4;
	if (strcmp(who, "parent") == 0)
		makes_an_error();
	if (strncmp(who, "child", 5) == 0 && wait(NULL) < 0)
		return 5;
	for (;;)
		pause();
}
