/* Works until a debugger sets "leave", it is killed, or ten minutes are over. */
#include <pthread.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

volatile int leave;
volatile unsigned long rounds;
volatile unsigned long other_rounds;

static void *other(void *argument)
{
	(void)argument;
	while (!leave) {
		other_rounds++;
		usleep(1000);
	}
	return NULL;
}

__attribute__((noinline)) void turn(void)
{
	rounds++;
}

int main(void)
{
	struct timespec nap = { 0, 200000 };
	time_t end = time(NULL) + 600;
	pthread_t thread;

	pthread_create(&thread, NULL, other, NULL);
	puts("spin: up");
	fflush(stdout);
	while (!leave && time(NULL) < end) {
		turn();
		nanosleep(&nap, NULL);
	}
	leave = 1;
	pthread_join(thread, NULL);
	puts("spin: done");
	return 9;
}
