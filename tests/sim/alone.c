/* For machines with one processor and no signals: cells that are written, what the kernel writes, and two
 * ways not to end. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int cells[10000];
char buf[64];
volatile int leave, rounds;

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	int file = open(argv[0], O_RDONLY);

	ready();
	cells[1234] = 5;
	cells[9999] += 7;
	if (read(file, buf + 8, 4) != 4)
		return 1;
	if (!strcmp(what, "spin"))
		while (!leave)
			rounds++;
	if (!strcmp(what, "crash"))
		*(volatile int *)8 = 1;
	puts("alone: done");
	return 3;
}
