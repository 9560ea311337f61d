/* Dies in the way that its argument names. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int watched = 1;
volatile int *mapped; /* of a file that becomes too short */

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

static void *in_thread(void *argument)
{
	*(volatile int *)argument = 1;
	return NULL;
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "segv";
	volatile int zero = 0;
	pthread_t thread;
	FILE *file = tmpfile();

	ftruncate(fileno(file), 4096);
	mapped = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
	ready();
	watched = 2;
	puts("crash: going");
	fflush(stdout);
	if (!strcmp(how, "segv"))
		*(volatile int *)8 = 1;
	if (!strcmp(how, "wild")) /* non-canonical: no address in siginfo */
		*(volatile int *)0x4141414141414141 = 1;
	if (!strcmp(how, "jump"))
		((void (*)(void))0x1000)();
	if (!strcmp(how, "data"))
		((void (*)(void))&watched)();
	if (!strcmp(how, "bus")) {
		ftruncate(fileno(file), 0);
		*mapped = *mapped + 1;
	}
	if (!strcmp(how, "text"))
		*(volatile char *)main = 1;
	if (!strcmp(how, "abort"))
		abort();
	if (!strcmp(how, "fpe"))
		return 7 / zero;
	if (!strcmp(how, "ill"))
		__asm__ volatile("ud2");
	if (!strcmp(how, "trap"))
		__asm__ volatile("int3");
	if (!strcmp(how, "kill"))
		kill(getpid(), SIGKILL);
	if (!strcmp(how, "term"))
		kill(getpid(), SIGTERM);
	if (!strcmp(how, "thread")) {
		pthread_create(&thread, NULL, in_thread, (void *)16);
		pthread_join(thread, NULL);
	}
	puts("crash: still here");
	return 0;
}
