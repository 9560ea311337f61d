/* Stores with an opmask, as C libraries end fills and copies with: `vmovdqu8 %zmm16,(%rdi){%k1}`.
 *
 *   masked ROUNDS     prints how many stretches of bytes it has stored to, and how many of them were as they are
 *                     stored already; "no AVX-512" where the processor has none
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Alignas(4096) unsigned char block[3 * 4096];
static long stored, silent;

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

__attribute__((noinline, target("avx512bw"))) static void store(unsigned char *to, unsigned long mask)
{
	__asm__ volatile("kmovq	%1, %%k1\n"
			 "vmovdqu8	%%zmm16, (%0)%{%%k1%}\n"
			 :
			 : "r"(to), "r"(mask)
			 : "memory", "xmm16", "k1");
}

__attribute__((noinline, target("avx512bw"))) static void value(int byte)
{
	__asm__ volatile("vpbroadcastb	%0, %%zmm16\n" : : "r"(byte) : "xmm16");
}

/* One stretch of bytes, counted. */
static void expect(const unsigned char *at, int len, int byte)
{
	int same = 1;

	for (int n = 0; n < len; n++)
		same &= at[n] == byte;
	stored += 1;
	silent += same;
}

int main(int argc, char **argv)
{
	long rounds = argc > 1 ? atol(argv[1]) : 1;

	if (!__builtin_cpu_supports("avx512bw")) {
		ready();
		puts("masked: no AVX-512");
		return 0;
	}
	ready();
	for (long n = 0; n < rounds; n++) {
		int len = n % 41, byte = n / 100 % 3;
		/* Now and then across the edge between two pages. */
		unsigned char *to = block + 4096 - 20 + n * 7 % 4096 % 64 * (n % 5 != 0) * 40;

		value(byte);
		if (len > 0)
			expect(to, len, byte);
		store(to, (1ul << len) - 1);
		if (n % 16 == 0) {
			expect(block, 2, 7);
			expect(block + 4, 3, 7);
			value(7);
			store(block, 0x73);
		}
	}
	printf("masked: %ld stored, %ld silent\n", stored, silent);
	return 0;
}
