/* Threads with alternate stacks of their own, and handlers that run there.
 *
 *   alternate      counts until a line is read; then each thread says whether its stack is still the one it has
 *                  asked for, and gets a signal there; and a child that is forked then does so, too
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS 3
#define SIZE (1 << 18)

volatile long count;
static volatile int asked;
static __thread sigjmp_buf back;
static __thread char *stack;
static __thread volatile int on_it;

static void on_fault(int signal, siginfo_t *info, void *context)
{
	char here;
	(void)signal, (void)info, (void)context;
	on_it = &here >= stack && &here < stack + SIZE;
	siglongjmp(back, 1);
}

static void set_up(void)
{
	stack = malloc(SIZE);
	stack_t own = { .ss_sp = stack, .ss_size = SIZE };
	if (sigaltstack(&own, NULL))
		exit(1);
}

static const char *check(void)
{
	stack_t now;
	if (sigaltstack(NULL, &now) || now.ss_sp != stack || now.ss_size != SIZE || now.ss_flags)
		return "another stack";
	if (!sigsetjmp(back, 1))
		*(volatile int *)8 = 1;
	return on_it ? "its stack" : "a handler elsewhere";
}

static void *work(void *name)
{
	set_up();
	while (!asked) {
		__atomic_fetch_add(&count, 1, __ATOMIC_RELAXED);
		usleep(1000);
	}
	printf("%s: %s\n", (const char *)name, check());
	return NULL;
}

int main(void)
{
	static const char *names[THREADS] = { "first", "second", "third" };
	pthread_t threads[THREADS];
	struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK };
	sigaction(SIGSEGV, &action, NULL);
	set_up();
	for (int i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, work, (void *)names[i]);
	puts("ready");
	fflush(stdout);
	getchar();
	asked = 1;
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	printf("main: %s\n", check());
	fflush(stdout);
	pid_t child = fork();
	if (!child) {
		printf("child: %s\n", check());
		fflush(stdout);
		_exit(0);
	}
	waitpid(child, NULL, 0);
	return 0;
}
