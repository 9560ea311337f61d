/* Loads with an opmask, with which C libraries compare partial vectors: `vpcmpneqb (%rdi),%ymm18,%k1{%k2}`.
 *
 *   masked_loads ROUNDS FROM LEN
 *
 * Loads from `block`, with masks of all kinds. Prints the number of selected stretches of bytes that overlap the LEN bytes
 * at offset FROM, and a sum of the loaded values. Prints "no AVX-512" if the processor lacks it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Alignas(4096) unsigned char block[3 * 4096];
static long from, len, hits;
static unsigned long sum;

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

#define LOAD(name, insn)                                                                              \
	__attribute__((noinline, target("avx512bw"))) static void name(const unsigned char *at,       \
								       unsigned long mask)            \
	{                                                                                             \
		_Alignas(64) unsigned long got[8];                                                    \
		__asm__ volatile("kmovq	%1, %%k2\n"                                                   \
				 "vpxorq	%%zmm18, %%zmm18, %%zmm18\n"                          \
				 "vpxorq	%%zmm17, %%zmm17, %%zmm17\n"                          \
				 "kxorq	%%k1, %%k1, %%k1\n" insn "\n"                                 \
				 "kmovq	%%k1, %%rax\n"                                                \
				 "vmovdqa64	%%zmm17, (%2)\n"                                      \
				 :                                                                    \
				 : "r"(at), "r"(mask), "r"(got)                                       \
				 : "memory", "rax", "xmm17", "xmm18", "k1", "k2");                    \
		for (int n = 0; n < 8; n++)                                                           \
			sum = sum * 31 + got[n];                                                      \
	}

LOAD(bytes32, "vmovdqu8	(%0), %%ymm17%{%%k2%}")
LOAD(bytes64, "vmovdqu8	(%0), %%zmm17%{%%k2%}%{z%}")
LOAD(words32, "vmovdqu16	(%0), %%ymm17%{%%k2%}")
LOAD(dwords32, "vmovdqu32	(%0), %%ymm17%{%%k2%}")
LOAD(dwords64, "vpaddd	(%0), %%zmm18, %%zmm17%{%%k2%}")
LOAD(qwords32, "vmovdqu64	(%0), %%ymm17%{%%k2%}")
LOAD(qwords64, "vmovdqu64	(%0), %%zmm17%{%%k2%}")
LOAD(widened, "vpmovzxbd	(%0), %%zmm17%{%%k2%}")
LOAD(scalar, "vmovss	(%0), %%xmm17%{%%k2%}")
LOAD(compared, "vpcmpneqb	(%0), %%ymm18, %%k1%{%%k2%}\n vpmovm2b %%k1, %%zmm17")

static const struct {
	void (*load)(const unsigned char *, unsigned long);
	int element, size;
} kinds[] = {
	{ bytes32, 1, 32 }, { bytes64, 1, 64 },	 { words32, 2, 32 }, { dwords32, 4, 32 }, { dwords64, 4, 64 },
	{ qwords32, 8, 32 }, { qwords64, 8, 64 }, { widened, 1, 16 }, { scalar, 4, 4 },	  { compared, 1, 32 },
};

/* Stretches of selected bytes that meet what is watched. */
static void expect(long at, unsigned long mask, int element, int size)
{
	int before = 0, meets = 0;

	for (int n = 0; n <= size / element; n++) {
		int selected = n < size / element && mask >> n & 1;
		long start = at + n * element;

		if (before && !selected)
			hits += meets;
		if (!before)
			meets = 0;
		if (selected)
			meets |= start < from + len && start + element > from;
		before = selected;
	}
}

static unsigned long chance(void)
{
	static unsigned long state = 88172645463325252;

	state ^= state << 13;
	state ^= state >> 7;
	return state ^= state << 17;
}

int main(int argc, char **argv)
{
	long rounds = argc > 1 ? atol(argv[1]) : 1;

	from = argc > 2 ? atol(argv[2]) : 0;
	len = argc > 3 ? atol(argv[3]) : (long)sizeof block;
	for (unsigned n = 0; n < sizeof block; n++)
		block[n] = n * 7 + n / 256;
	if (!__builtin_cpu_supports("avx512bw")) {
		ready();
		puts("masked_loads: no AVX-512");
		return 0;
	}
	ready();
	for (long n = 0; n < rounds; n++) {
		unsigned kind = chance() % (sizeof kinds / sizeof *kinds);
		unsigned long mask = chance();
		/* Now and then across an edge between two pages. */
		long at = n % 9 ? 4096 + (long)(chance() % 3900) : 4096 - (long)(chance() % 64);

		switch (n % 4) {
		case 0:
			mask = (1ul << mask % 64) - 1;
			break;
		case 1:
			mask = -1ul << mask % 64;
			break;
		case 2:
			mask &= mask >> 3 & mask >> 11;
			break;
		}
		expect(at, mask, kinds[kind].element, kinds[kind].size);
		kinds[kind].load(block + at, mask);
	}
	printf("masked_loads: %ld stretches, sum %lx\n", hits, sum);
	return 0;
}
