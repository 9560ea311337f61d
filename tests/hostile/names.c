/* Maps the file that it is given as if that were a library, says so, and counts for ever. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

volatile int counter;

int main(int argc, char **argv)
{
	if (argc > 1) {
		int fd = open(argv[1], O_RDONLY);
		if (fd < 0 || mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0) == MAP_FAILED) {
			perror(argv[1]);
			return 1;
		}
		close(fd);
	}
	puts("ready");
	fflush(stdout);
	for (;;) {
		counter++;
		usleep(1000);
	}
}
