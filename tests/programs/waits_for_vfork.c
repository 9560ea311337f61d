/* The parent of a vfork child, which no signal but SIGKILL reaches until the child has ended, a second later. Then it
   counts in its heap. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(void)
{
	volatile long *count = calloc(1, 64);

	puts("waits");
	fflush(stdout);
	if (vfork() == 0) {
		sleep(1);
		_exit(0);
	}
	for (;;) {
		++*count;
		usleep(1000);
	}
}
