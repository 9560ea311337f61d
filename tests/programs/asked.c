/* State that a debugger reads at every stop, with changes in between: by the debugger itself, by another process,
 * by a thread's system call. Also code that is overwritten under a breakpoint.
 *
 *   asked SHARED TYPED     a file of 8 bytes that others write to as well; a FIFO that the test types into
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

volatile long counter, other = 7;
volatile long *shared;
volatile char typed = '-';
unsigned char *code;
int results;

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

__attribute__((noinline)) void tick(void)
{
	counter++;
}

static void *reader(void *path)
{
	int fd = open(path, O_RDONLY);

	if (fd >= 0 && read(fd, (char *)&typed, 1) == 1)
		close(fd);
	return NULL;
}

int main(int argc, char **argv)
{
	static const unsigned char one[] = {0xb8, 1, 0, 0, 0, 0xc3};       /* mov $1, %eax; ret */
	static const unsigned char two[] = {0x90, 0xb8, 2, 0, 0, 0, 0xc3}; /* nop; mov $2, %eax; ret */
	pthread_t thread;
	int fd, n;

	code = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memcpy(code, one, sizeof one);
	if (argc > 1) {
		fd = open(argv[1], O_RDWR);
		shared = mmap(NULL, 8, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	}
	if (argc > 2)
		pthread_create(&thread, NULL, reader, argv[2]);
	ready();
	for (n = 0; n < 20; n++) {
		tick();
		if (shared)
			++*shared;
		results = results * 3 + ((int (*)(void))code)();
		if (n == 9)
			memcpy(code, two, sizeof two);
	}
	if (argc > 2)
		pthread_join(thread, NULL);
	printf("asked: %ld %ld %c %d\n", counter, shared ? *shared : 0, typed, results);
	return 0;
}
