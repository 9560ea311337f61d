// Long doubles, integers through the x87 unit and its control word, in a hot loop. With `trap`, dividing by zero raises
// SIGFPE at instructions that have watched operands; the handler says whether it knows that instruction.
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <ucontext.h>

struct sums {
	long double sum, product;
	double half;
	float quarter;
	int64_t whole;
	int32_t small;
	int16_t tiny;
	uint16_t control;
} sums = {.product = 1};

static sigjmp_buf back;
extern const char divides[], divided[], divides_integers[];

static void fault(int sig, siginfo_t *info, void *context)
{
	ucontext_t *u = context;
	const char *pc = (const char *)u->uc_mcontext.gregs[REG_RIP];
	// The unit reports at its next instruction.
	printf("%d %d, %s, %s\n", sig, info->si_code, (pc >= divides && pc <= divided) || pc == divides_integers ? "known" : "elsewhere",
	       (const char *)info->si_addr == pc ? "there" : "another place");
	siglongjmp(back, 1);
}

__attribute__((noinline)) static void compute(int n)
{
	sums.sum += 1.5L / n;
	sums.product *= 1.0000001L;
	__asm__ volatile("fldl %0; fstpl %0" : "+m"(sums.half) : : "memory");
	__asm__ volatile("fildl %1; fadds %0; fstps %0" : "+m"(sums.quarter) : "m"(sums.small) : "memory");
	__asm__ volatile("fildll %0; fistpll %0" : "+m"(sums.whole) : : "memory");
	__asm__ volatile("filds %0; fistps %0" : "+m"(sums.tiny) : : "memory");
	__asm__ volatile("fnstcw %0; fldcw %0" : "+m"(sums.control) : : "memory");
	sums.small = n;
	sums.whole += n;
	sums.half = n / 2.0;
	sums.tiny = (int16_t)n;
}

int main(int argc, char **argv)
{
	for (int n = 1; n <= 20000; n++)
		compute(n);
	printf("%.15Lg %.15Lg %g %g %ld %d %d %x\n", sums.sum, sums.product, sums.half, sums.quarter, (long)sums.whole, sums.small, sums.tiny,
	       sums.control);
	if (argc > 1 && !strcmp(argv[1], "trap")) {
		struct sigaction action = {.sa_sigaction = fault, .sa_flags = SA_SIGINFO};
		sigaction(SIGFPE, &action, NULL);
		for (int n = 0; n < 50; n++) {
			sums.half = n < 40;
			const uint16_t control = 0x37b;
			__asm__ volatile("fnclex; fldcw %0" : : "m"(control));
			if (!sigsetjmp(back, 1))
				__asm__ volatile("fld1; divides: fdivl %0; fstpt %1; divided: fldt %1; fstp %%st" : : "m"(sums.half), "m"(sums.sum) : "memory");
			else
				__asm__ volatile("fninit");
			sums.small = n < 40;
			if (!sigsetjmp(back, 1))
				__asm__ volatile("divides_integers: idivl %0" : : "m"(sums.small), "a"(7), "d"(0) : "memory");
		}
	}
	return 0;
}
