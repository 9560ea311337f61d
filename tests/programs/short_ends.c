/* Functions on a stack in the heap, run as often as argument 1 says. Their ends have no room for a jump: behind one is
   only padding, behind the others the target of a jump. No symbols say where they begin. At last, the program traps in
   the padding. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

#define STACK 65536
static ucontext_t home, inside;
static long rounds, sum;
static long trapped_at;

void nothing(void);
long ends(long which);

/* ends(0) and ends(1) return what they are given and 10, ends(2) loops five times first. */
__asm__(".text\n"
	"	.p2align 4, 0xcc\n"
	"nothing: ret\n"
	"	.fill 15, 1, 0xcc\n"
	"ends:	push %rbp\n"
	"	mov %rsp, %rbp\n"
	"	sub $16, %rsp\n"
	"	mov $5, %ecx\n"
	"	cmp $1, %edi\n"
	"	jb 1f\n"
	"	je 2f\n"
	"	jmp 4f\n"
	"3:	dec %ecx\n"
	"4:	cmp $0, %ecx\n"
	"	jne 3b\n"
	"	jmp 5f\n"
	"1:	mov $10, %eax\n"
	"	add $16, %rsp\n"
	"	pop %rbp\n"
	"	ret\n"
	"2:	mov $11, %eax\n"
	"	add $16, %rsp\n"
	"	pop %rbp\n"
	"	ret\n"
	"5:	mov $12, %eax\n"
	"	add $16, %rsp\n"
	"	pop %rbp\n"
	"	ret\n"
	"	.fill 16, 1, 0xcc\n");

static void trapped(int number, siginfo_t *info, void *context)
{
	(void)number, (void)info;
	greg_t *rip = &((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
	trapped_at = *rip - (long)nothing;
	*rip = (long)nothing;
}

static void on_the_heap(void)
{
	for (long n = 0; n < rounds; n++) {
		nothing();
		sum += ends(n % 3);
	}
}

int main(int argc, char **argv)
{
	rounds = argc > 1 ? atol(argv[1]) : 1000;
	sigaction(SIGTRAP, &(struct sigaction){.sa_sigaction = trapped, .sa_flags = SA_SIGINFO}, NULL);
	for (int turn = 0; turn < 2; turn++) {
		getcontext(&inside);
		inside.uc_stack.ss_sp = malloc(STACK);
		inside.uc_stack.ss_size = STACK;
		inside.uc_link = &home;
		makecontext(&inside, on_the_heap, 0);
		swapcontext(&home, &inside);
		for (int n = 1; n < 6; n++) {
			((void (*)(void))((char *)nothing + n))();
			printf("short_ends: %ld of %d\n", trapped_at, n);
		}
	}
	printf("short_ends: %ld\n", sum);
	return 0;
}
