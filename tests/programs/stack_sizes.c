// Alternate stacks (sigaltstack(2)) of many sizes: which of them the kernel takes, and whether handlers run on them.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

int counter;
static char *stack;
static size_t size;
static volatile int on_it;

static void handler(int signal)
{
	char here;
	(void)signal;
	counter++;
	on_it = &here >= stack && &here < stack + size;
}

int main(void)
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_ONSTACK };
	sigaction(SIGUSR1, &action, NULL);
	for (size = 1024; size <= 1 << 16; size += 1024) {
		stack = malloc(size);
		stack_t own = { .ss_sp = stack, .ss_size = size };
		int refused = sigaltstack(&own, NULL);
		on_it = 0;
		// (What the kernel lays there depends on the processor.)
		if (!refused && size >= 8192)
			raise(SIGUSR1);
		printf("%zu: %d %d\n", size, refused, on_it);
		own.ss_flags = SS_DISABLE;
		sigaltstack(&own, NULL);
		free(stack);
	}
	return 0;
}
