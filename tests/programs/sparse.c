/* A program that reserves more memory than there is, as browsers and runtimes do, and has a child. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	size_t len = strtoul(argc > 1 ? argv[1] : "64", 0, 0) << 30;
	char *memory = mmap(0, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	int status;
	if (memory == MAP_FAILED) {
		perror("mmap");
		return 9;
	}
	memory[5] = 1;
	memory[len - 1] = 2;
	if (!fork()) {
		memory[6] = 3;
		_exit(memory[5] + memory[len - 1] + memory[6]);
	}
	wait(&status);
	printf("%x %d\n", status, memory[6]);
	return munmap(memory, len);
}
