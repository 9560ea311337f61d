// A loop of accesses to a block, with known registers and flags at each instruction. Signals interrupt it. It prints its
// result, and how often a handler, or the loop itself, has found another value in a register.
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <ucontext.h>

#define KNOWN 0x1122334455667788
extern const char loop_begins[], loop_ends[];
static volatile long struck, wrong;
static uint64_t *block;

static void strike(int number, siginfo_t *info, void *context)
{
	(void)number;
	(void)info;
	const greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
	const char *pc = (const char *)r[REG_RIP];
	if (pc < loop_begins || pc >= loop_ends)
		return;
	struck++;
	wrong += (uint64_t)r[REG_RSI] != KNOWN || (uint64_t)r[REG_RBX] != KNOWN || (uint64_t)r[REG_RDX] != KNOWN || (uint64_t)r[REG_R8] != KNOWN ||
		 (uint64_t)r[REG_R9] != KNOWN || (uint64_t)r[REG_R10] != KNOWN || (uint64_t *)r[REG_RDI] != block;
}

static uint64_t loop(uint64_t rounds)
{
	uint64_t sum = 0, bad = 0;
	__asm__ volatile(
		"	mov %[known], %%rsi\n"
		"	mov %%rsi, %%rbx\n"
		"	mov %%rsi, %%rdx\n"
		"	mov %%rsi, %%r8\n"
		"	mov %%rsi, %%r9\n"
		"	mov %%rsi, %%r10\n"
		"loop_begins:\n"
		/* Loads, whose own register is free; one of a register that its address needs; one of half a register. */
		"1:	mov 8(%%rdi), %%rax\n"
		"	add %%rax, %[sum]\n"
		"	movzbl 16(%%rdi), %%ecx\n"
		"	add %%rcx, %[sum]\n"
		"	mov (%%rdi), %%rax\n"
		"	mov 8(%%rax), %%rax\n"
		"	xor %%rax, %[sum]\n"
		"	mov 24(%%rdi), %%al\n"
		"	add %%rax, %[sum]\n"
		/* Stores, and what is read and written. */
		"	mov %[sum], 8(%%rdi)\n"
		"	add $3, %[sum]\n"
		"	addl $1, 16(%%rdi)\n"
		"	movl $7, 24(%%rdi)\n"
		"	xor %%ecx, %%ecx\n"
		"	mov %%rsi, 32(%%rdi,%%rcx,8)\n"
		"	cmp %%rsi, 32(%%rdi)\n"
		"	jne 8f\n"
		"	xorps %%xmm0, %%xmm0\n"
		"	movups %%xmm0, 48(%%rdi)\n"
		"	cmpq $0, 56(%%rdi)\n"
		"	jne 8f\n"
		/* The flags are asked for behind accesses that leave them alone. */
		"	stc\n"
		"	mov 8(%%rdi), %%rax\n"
		"	mov %%rax, 40(%%rdi)\n"
		"	jnc 8f\n"
		"	adc $0, %%rax\n"
		"	sub 40(%%rdi), %%rax\n"
		"	cmp $1, %%rax\n"
		"	mov %%al, 64(%%rdi)\n"
		"	jne 8f\n"
		"	setz 65(%%rdi)\n"
		"	cmpb $1, 65(%%rdi)\n"
		"	jne 8f\n"
		/* x87 */
		"	fldt 80(%%rdi)\n"
		"	fld1\n"
		"	faddp\n"
		"	fstpt 80(%%rdi)\n"
		"	cmp %%rbx, %%rsi\n"
		"	jne 8f\n"
		"	cmp %%rdx, %%rsi\n"
		"	jne 8f\n"
		"	cmp %%r8, %%r9\n"
		"	jne 8f\n"
		"	jmp 9f\n"
		"8:	inc %[bad]\n"
		"9:	dec %[rounds]\n"
		"	jne 1b\n"
		"loop_ends:\n"
		: [sum] "+r"(sum), [bad] "+r"(bad), [rounds] "+r"(rounds)
		: [known] "r"((uint64_t)KNOWN), "D"(block)
		: "rax", "rcx", "rdx", "rbx", "rsi", "r8", "r9", "r10", "xmm0", "memory", "cc");
	wrong += (long)bad;
	return sum;
}

extern const char peeks[], peeked[];
static volatile long refused;

/* A load that faults leaves its register as it was. */
static void refuse(int number, siginfo_t *info, void *context)
{
	(void)number;
	(void)info;
	greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
	refused++;
	wrong += (const char *)r[REG_RIP] != peeks || (uint64_t)r[REG_RAX] != KNOWN;
	r[REG_RIP] = (greg_t)peeked;
}

static uint64_t peek(const uint64_t *at)
{
	uint64_t value = KNOWN;
	__asm__ volatile("peeks: mov (%1), %0\npeeked: add $1, %0" : "+a"(value) : "r"(at) : "memory", "cc");
	return value;
}

int main(int argc, char **argv)
{
	const uint64_t rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : 100000;
	block = calloc(1, 4096);
	block[0] = (uint64_t)block;
	const struct sigaction action = {.sa_sigaction = strike, .sa_flags = SA_SIGINFO | SA_RESTART};
	sigaction(SIGALRM, &action, NULL);
	const struct itimerval often = {.it_interval.tv_usec = 50, .it_value.tv_usec = 50};
	setitimer(ITIMER_REAL, &often, NULL);
	const uint64_t sum = loop(rounds);
	setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
	sigaction(SIGSEGV, &(struct sigaction){.sa_sigaction = refuse, .sa_flags = SA_SIGINFO}, NULL);
	for (int i = 0; i < 1000; i++)
		wrong += peek(block + 128) != 1 || (i % 50 == 0 && peek((uint64_t *)(uintptr_t)(16 + i)) != KNOWN + 1);
	wrong += refused != 20;
	long double count;
	memcpy(&count, (char *)block + 80, 10);
	printf("%lx, %.0Lf rounds, %ld wrong\n", (unsigned long)sum, count, wrong);
	fprintf(stderr, "struck %ld times\n", struck);
	free(block);
	return 0;
}
