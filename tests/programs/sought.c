/* Values in each kind of memory, for `ulpf find`. Says where they are; then each + or - on its standard input changes `number`,
 * and is answered by the same character. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { VALUE = 271828182 };

static volatile int number = VALUE;
static volatile double real = 3.25;
static volatile short small = -77;
static char text[32] = "sought and found";
static struct {
	char before;
	int odd;
} __attribute__((packed, aligned(4))) packed = { 0, 0x12345678 };
static volatile int *volatile in_thread;

static void *wait_for_ever(void *arg)
{
	volatile int here = VALUE;

	in_thread = &here;
	pause();
	return arg;
}

__attribute__((noinline)) static void change(char how)
{
	number += how == '+' ? 1 : -1;
}

int main(void)
{
	volatile int local = VALUE;
	int *block = malloc(4096);
	pthread_t thread;
	char c;

	block[7] = VALUE;
	pthread_create(&thread, NULL, wait_for_ever, NULL);
	while (!in_thread)
		usleep(1000);
	printf("number %p real %p small %p text %p odd %p local %p block %p thread %p\n", (void *)&number, (void *)&real,
	       (void *)&small, (void *)text, (char *)&packed + 1, (void *)&local, (void *)&block[7], (void *)in_thread);
	fflush(stdout);
	while (read(0, &c, 1) == 1) {
		change(c);
		if (write(1, &c, 1) != 1)
			return 1;
	}
	return local != VALUE;
}
