/* Leaves with the status that it is given; "group" leaves from a thread. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void *leave(void *status)
{
	exit((int)(long)status);
}

int main(int argc, char **argv)
{
	int status = argc > 1 ? atoi(argv[1]) : 0;
	pthread_t thread;

	printf("exitcode: %d\n", status);
	if (argc > 2) {
		pthread_create(&thread, NULL, leave, (void *)(long)status);
		pthread_exit(NULL);
	}
	return status;
}
