/* System calls that make processes, as single instructions: calls_that_fork fork|vfork|grand|exec PROGRAM */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

/* The child of a vfork must not return from here. */
static inline __attribute__((always_inline)) long fork_here(void)
{
	long result;

	__asm__ volatile(".globl fork_call\nfork_call: syscall\n.globl after_fork\nafter_fork: nop"
			 : "=a"(result) : "a"(SYS_fork) : "rcx", "r11", "memory");
	return result;
}

static inline __attribute__((always_inline)) long vfork_here(void)
{
	long result;

	__asm__ volatile(".globl vfork_call\nvfork_call: syscall\n.globl after_vfork\nafter_vfork: nop"
			 : "=a"(result) : "a"(SYS_vfork) : "rcx", "r11", "memory");
	return result;
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "";
	int status = -1;
	pid_t child = -1;

	ready();
	if (strcmp(how, "fork") == 0) {
		child = fork_here();
		if (child == 0)
			_exit(3);
	} else if (strcmp(how, "vfork") == 0) {
		child = vfork_here();
		if (child == 0)
			_exit(3);
	} else if (strcmp(how, "grand") == 0) {
		child = vfork();
		if (child == 0) {
			pid_t grandchild = vfork();

			if (grandchild == 0)
				_exit(2);
			waitpid(grandchild, &status, 0);
			_exit(WEXITSTATUS(status) + 1);
		}
	} else if (argc > 2) {
		execl(argv[2], argv[2], NULL);
	}
	if (waitpid(child, &status, 0) != child)
		return 1;
	printf("%s: %d\n", how, WEXITSTATUS(status));
	return 0;
}
