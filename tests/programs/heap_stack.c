/* Pushes, calls, returns and stores on a stack that is in the heap, as often as argument 1 says, while signals strike
   whose handler runs elsewhere: each round makes as many accesses, of which as many change nothing. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <ucontext.h>

#define STACK 65536
static ucontext_t home, inside;
static long rounds;
static volatile long struck;
static char elsewhere[STACK];

static void strike(int number)
{
	(void)number;
	struck++;
}

static void on_the_heap(void)
{
	__asm__ volatile(
		"	mov %0, %%r12\n"
		"	lea 8f(%%rip), %%r13\n"
		"1:	mov %%r12, %%rcx\n"
		"	lea -1(%%r12), %%rbx\n"
		/* Of one in two, what is there is there again. */
		"	push %%rbx\n"
		"	push %%rcx\n"
		"	push $5\n"
		"	push $0x12345678\n"
		"	pop %%rax\n"
		"	cmp $0x12345678, %%rax\n"
		"	jne 9f\n"
		"	pop %%rax\n"
		"	pop %%rcx\n"
		"	cmp %%r12, %%rcx\n"
		"	jne 9f\n"
		"	pop %%rbx\n"
		"	call 8f\n"
		"	call *%%r13\n"
		"	mov %%r13, %%rcx\n"
		"	call *%%rcx\n"
		"	cmp %%r13, %%rcx\n"
		"	jne 9f\n"
		"	mov %%r12, %%rcx\n"
		"	mov %%rcx, -8(%%rsp)\n"
		"	mov %%rcx, -8(%%rsp)\n"
		"	mov %%ecx, -16(%%rsp)\n"
		"	mov %%ecx, -12(%%rsp)\n"
		"	mov %%cx, -18(%%rsp)\n"
		"	mov %%cl, -19(%%rsp)\n"
		"	mov %%rbx, -32(%%rsp)\n"
		"	mov %%ebx, -32(%%rsp)\n"
		"	mov %%bx, -32(%%rsp)\n"
		"	mov %%bl, -32(%%rsp)\n"
		"	mov %%bh, -31(%%rsp)\n"
		"	mov %%sil, -33(%%rsp)\n"
		"	movq $-2, -48(%%rsp)\n"
		"	movq $0x7fffffff, -48(%%rsp)\n"
		"	movl $0x7fffffff, -44(%%rsp)\n"
		"	movw $-1, -44(%%rsp)\n"
		"	movb $1, -41(%%rsp)\n"
		"	mov %%rsp, -56(%%rsp)\n"
		"	mov -8(%%rsp), %%rcx\n"
		"	cmp %%r12, %%rcx\n"
		"	jne 9f\n"
		"	push %%rbp\n"
		"	mov %%rsp, %%rbp\n"
		"	push %%r12\n"
		"	leave\n"
		"	dec %%r12\n"
		"	jnz 1b\n"
		"	jmp 2f\n"
		"8:	ret\n"
		"9:	ud2\n"
		"2:\n"
		:: "m"(rounds)
		: "rax", "rbx", "rcx", "rsi", "r12", "r13", "memory", "cc");
}

int main(int argc, char **argv)
{
	char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	stack_t alternate = { .ss_sp = elsewhere, .ss_size = sizeof elsewhere };
	struct sigaction action = { .sa_handler = strike, .sa_flags = SA_ONSTACK | SA_RESTART };
	struct itimerval every = { { 0, 200 }, { 0, 200 } }, never = { { 0, 0 }, { 0, 0 } };

	rounds = argc > 1 ? atol(argv[1]) : 1000;
	getcontext(&inside);
	inside.uc_stack.ss_sp = stack;
	inside.uc_stack.ss_size = STACK;
	inside.uc_link = &home;
	makecontext(&inside, on_the_heap, 0);
	sigaltstack(&alternate, NULL);
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &every, NULL);
	swapcontext(&home, &inside);
	setitimer(ITIMER_REAL, &never, NULL);
	printf("heap_stack: done\n");
	return struck < 0;
}
