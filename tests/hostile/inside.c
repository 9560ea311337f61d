/* A constant whose bytes are an instruction, in a page of code that meets watched memory. */
#include <stdio.h>
#include <stdlib.h>

volatile unsigned long counter;

__attribute__((noinline, aligned(4096))) unsigned long constant(void)
{
	unsigned long value;
#ifdef INSTEAD
	/* The same bytes, where an instruction begins. */
	char byte;
	__asm__ volatile("nop; nop; mov %%al,(%%rdi); nop; nop; nop; nop; nop; nop" : "=a"(value) : "D"(&byte) : "memory");
#else
	__asm__ volatile("movabs $0x9090909090900788,%0" : "=a"(value));
#endif
	return value;
}

__attribute__((noinline)) void work(void)
{
	for (int i = 0; i < 100; i++)
		counter++;
}

/* Stores that are not made often enough to be patched without a hint. */
__attribute__((noinline, aligned(4096))) void late(void)
{
	counter = 1;
	counter = 2;
	counter = 3;
	counter = 4;
}

int main(void)
{
	/* Most pages that are watched are the heap's, whatever the C library has taken. */
	if (!malloc(1 << 16))
		return 1;
	printf("before %lx\n", constant());
	for (int i = 0; i < 100; i++)
		work();
	late();
	printf("after  %lx\n", constant());
	return 0;
}
