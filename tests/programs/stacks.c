/* Uses of a stack whose pages are watched: calls, red zones, alloca, longjmp, coroutines, and the stacks
 * of threads. Signal frames lie on the stack in use and on an alternate one. A recursion reaches pages
 * that are not there yet. Prints the same with and without watches. */
#define _GNU_SOURCE
#include <alloca.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>

#define AREA 32768
#define STACK 131072

/* Memory to watch: AREA bytes of each stack, and single words of them. */
char *main_area, *alternate, *thread_area, *coroutine_area;
void **return_slot;
long *local_slot, *thread_slot, *coroutine_slot;

static volatile int handled, on_alternate;
static volatile long total;
static ucontext_t home, coroutine;
static jmp_buf out;

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

static void on_signal(int number, siginfo_t *info, void *context)
{
	volatile char here[600];

	(void)info;
	(void)context;
	memset((void *)here, number, sizeof here);
	on_alternate += (char *)here > alternate && (char *)here < alternate + STACK;
	handled += here[599] == number;
}

/* Keeps four words below the stack pointer, where signal frames must not go. */
long red_zone(long turns);
__asm__(".text\n"
	"red_zone:\n"
	"	movq $11, -8(%rsp)\n"
	"	movq $22, -64(%rsp)\n"
	"	movq $33, -120(%rsp)\n"
	"	movq $0, -128(%rsp)\n"
	"1:	addq $1, -128(%rsp)\n"
	"	subq $1, %rdi\n"
	"	jnz 1b\n"
	"	movq -8(%rsp), %rax\n"
	"	addq -64(%rsp), %rax\n"
	"	addq -120(%rsp), %rax\n"
	"	addq -128(%rsp), %rax\n"
	"	ret\n");

__attribute__((noinline)) static long recurse(int depth, int bytes)
{
	volatile char *block = alloca(bytes);
	long result;

	block[0] = (char)depth;
	block[bytes - 1] = (char)(depth * 3);
	result = depth ? recurse(depth - 1, bytes) : 0;
	return result + block[0] + block[bytes - 1];
}

__attribute__((noinline)) static void jump_from(int depth)
{
	volatile long pad[40];

	pad[depth % 40] = depth;
	if (depth > 0)
		jump_from(depth - 1);
	if (pad[depth % 40] == 0)
		longjmp(out, 7);
	total += pad[depth % 40];
}

static void generator(void)
{
	volatile long value = 0;

	coroutine_slot = (long *)&value;
	for (;;) {
		value = value * 3 + 1;
		total += value % 1000;
		swapcontext(&coroutine, &home);
	}
}

__attribute__((noinline)) static long called(long n)
{
	return_slot = (void **)__builtin_frame_address(0) + 1;
	return n + 1;
}

static void *worker(void *argument)
{
	volatile long mine = 0;

	if (argument) {
		thread_slot = (long *)&mine;
		thread_area = (char *)(((uintptr_t)&mine & -4096l) + 4096 - AREA);
		ready();
	}
	for (int i = 0; i < 200; i++) {
		mine += recurse(20, 64 + i);
		if (i % 50 == 0)
			raise(SIGUSR1);
	}
	return (void *)mine;
}

static long thread(char *stack, void *argument)
{
	pthread_attr_t attributes;
	pthread_t id;
	void *result;

	pthread_attr_init(&attributes);
	if (stack)
		pthread_attr_setstack(&attributes, stack, STACK);
	pthread_create(&id, &attributes, worker, argument);
	pthread_join(id, &result);
	return (long)result;
}

int main(int argc, char **argv)
{
	struct sigaction action = { .sa_sigaction = on_signal, .sa_flags = SA_SIGINFO };
	struct itimerval timer = { { 0, 1000 }, { 0, 1000 } };
	stack_t other = { .ss_size = STACK };
	volatile long local = 0;
	int only_thread = argc > 1 && !strcmp(argv[1], "thread");

	setvbuf(stdout, NULL, _IOLBF, 0);
	sigaction(SIGUSR1, &action, NULL);
	sigaction(SIGALRM, &action, NULL);
	action.sa_flags |= SA_ONSTACK;
	sigaction(SIGUSR2, &action, NULL);
	alternate = other.ss_sp = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	sigaltstack(&other, NULL);
	coroutine_area = malloc(STACK);
	local_slot = (long *)&local;
	recurse(8, 4096); /* the pages below are there now */
	main_area = (char *)(((uintptr_t)&local & -4096l) + 4096 - AREA);
	called(0);
	if (!only_thread)
		ready();

	for (int i = 0; i < 40; i++) {
		local = called(local);
		raise(i % 2 ? SIGUSR1 : SIGUSR2);
	}
	printf("calls: local %ld, handled %d, alternate %d\n", local, handled, on_alternate);
	printf("red zone: %ld\n", red_zone(2000));
	setitimer(ITIMER_REAL, &timer, NULL);
	for (int i = 0; i < 20; i++)
		total += red_zone(5000);
	memset(&timer, 0, sizeof timer);
	setitimer(ITIMER_REAL, &timer, NULL);
	printf("red zones under a timer: %ld\n", total);
	printf("recursion: %ld %ld\n", recurse(60, 100), recurse(1000, 4000));
	for (int i = 0; i < 5; i++)
		if (!setjmp(out))
			jump_from(30 + i);
	printf("jumps: %ld\n", total);

	getcontext(&coroutine);
	coroutine.uc_stack.ss_sp = coroutine_area;
	coroutine.uc_stack.ss_size = STACK;
	coroutine.uc_link = NULL;
	makecontext(&coroutine, generator, 0);
	for (int i = 0; i < 300; i++)
		swapcontext(&home, &coroutine);
	printf("coroutine: %ld\n", total);

	printf("threads: %ld %ld\n", thread(NULL, only_thread ? "" : NULL), thread(malloc(STACK), NULL));
	return 0;
}
