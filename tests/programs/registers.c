/* Known values in the registers at the label stop_here. */
#include <stdio.h>

_Alignas(32) unsigned char pattern[32] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16,
	17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32 };
unsigned long out;

int add(int x, int y)
{
	return x + y;
}

double half(double x)
{
	return x / 2;
}

int main(void)
{
	if (__builtin_cpu_supports("avx"))
		__asm__ volatile("vmovdqa %0, %%ymm3" : : "m"(*(char (*)[32])pattern) : "xmm3");
	else
		__asm__ volatile("movdqa %0, %%xmm3" : : "m"(*(char (*)[16])pattern) : "xmm3");
	__asm__ volatile("fld1\n\tfldpi\n\t"
			 "movq $0x1111111111111111, %%r8\n\tmovq $0x2222222222222222, %%r9\n\t"
			 "movq $0x3333333333333333, %%r10\n\tmovq $0x4444444444444444, %%r11\n\t"
			 "movq $0x5555555555555555, %%r12\n\tmovl $0x66666666, %%eax\n\tstc\n\t"
			 ".globl stop_here\nstop_here:\n\tnop\n\t"
			 "movq %%r12, %0\n\tfstp %%st\n\tfstp %%st"
			 : "=m"(out)
			 :
			 : "rax", "r8", "r9", "r10", "r11", "r12", "cc");
	printf("registers: %lx %d %.2f\n", out, add(2, 3), half(5));
	return 0;
}
