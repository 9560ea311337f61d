/* Executes itself every two milliseconds, from one of its threads while the others allocate, and writes a byte each time. */
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

static void *allocates(void *unused)
{
	for (;;)
		free(malloc(100));
	return unused;
}

static void *executes(void *unused)
{
	usleep(2000);
	execl("/proc/self/exe", "executes", NULL);
	_exit(1);
	return unused;
}

int main(void)
{
	pthread_t thread;
	if (write(1, ".", 1) != 1)
		return 2;
	for (int n = 0; n < 5; n++)
		pthread_create(&thread, NULL, n == 2 ? executes : allocates, NULL);
	allocates(NULL);
}
