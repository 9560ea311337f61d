/* Maps the file that it is given as memory of its own, without touching it, and waits. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

struct list {
	struct list *next;
	int value;
};

struct list first = {0, 4711};
struct list *volatile lost;

int main(int argc, char **argv)
{
	int fd = open(argv[argc - 1], O_RDONLY);
	void *at = mmap(0, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	if (fd < 0 || at == MAP_FAILED) {
		perror(argv[argc - 1]);
		return 1;
	}
	lost = at;
	puts("ready");
	fflush(stdout);
	for (;;) {
		first.value++;
		usleep(100000);
		first.value--;
		usleep(100000);
	}
}
