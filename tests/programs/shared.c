/* The same memory at two addresses, and in two processes; private file memory beside it. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

char *first, *second, *private_copy;

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

int main(void)
{
	int fd = memfd_create("shared", 0), status;
	char from_file;
	pid_t child;

	if (fd < 0 || ftruncate(fd, 8192))
		return 2;
	first = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	second = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	private_copy = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	ready();
	first[8] = 'a';
	second[9] = 'b';
	if (first[9] != 'b' || second[8] != 'a')
		return 3;
	private_copy[8] = 'p';
	private_copy[4096] = 'q';
	child = fork();
	if (child == 0) {
		first[10] = 'c';
		private_copy[11] = 'x';
		_exit(0);
	}
	waitpid(child, &status, 0);
	first[8] = 'd';
	pread(fd, &from_file, 1, 8);
	printf("shared: %c%c%c file %c private %c%c%d\n", second[8], second[9], second[10],
	       from_file, private_copy[8], private_copy[4096], private_copy[11]);
	return 0;
}
