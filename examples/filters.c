/* Several functions and threads write to the same few variables; filters select among their stores. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { ROUNDS = 100 };

struct node {
	struct node *next;
	int x;
	signed char state;
	unsigned low : 3, high : 5;
};

int total;
long limit = 900;
int flag;
short table[16];
char buffer[64];
double ratio;
volatile int shared;
int checked;
int zero;
struct node second = { NULL, 7, -1, 5, 17 }, first = { &second, 0, 0, 0, 0 };
struct node *head;
_Thread_local int mine;

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

__attribute__((noinline)) void done(void)
{
	__asm__ volatile("");
}

__attribute__((noinline)) static void add(int n)
{
	total += n;
}

__attribute__((noinline)) void slowly(void)
{
	add(1);
}

__attribute__((noinline)) void quickly(void)
{
	add(10);
}

__attribute__((noinline)) void elsewhere(void)
{
	total -= 5;
}

static void *worker(void *argument)
{
	mine = (int)(long)argument;
	for (int i = 0; i < ROUNDS; i++)
		shared = i;
	return NULL;
}

/* The kernel and libc write here. */
static void fill(void)
{
	int ends[2];

	if (pipe(ends) || write(ends[1], "hello, filters\n", 15) != 15 || read(ends[0], buffer, 15) != 15)
		return;
	close(ends[0]);
	close(ends[1]);
	memcpy(buffer + 32, buffer, strlen(buffer) + 1);
}

int main(void)
{
	pthread_t threads[2];

	ready();
	for (int i = 0; i < ROUNDS; i++) {
		slowly();
		quickly();
		if (i % 10 == 9)
			elsewhere();
	}
	for (int i = 0; i < ROUNDS; i++) {
		flag = i / 10;
		table[i % 16] = (short)(50 - i);
		ratio = i / 8.0;
		head = i % 4 ? &first : NULL;
		first.x = i;
		zero = i % 10;
		checked = i;
	}
	memset(table, 0x11, sizeof table);
	fill();
	for (long i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, worker, (void *)(i + 1));
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	worker(NULL);
	done();
	printf("filters: total %d, flag %d, checked %d, %s", total, flag, checked, buffer);
	return 0;
}
