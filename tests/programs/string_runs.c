/* String instructions over watched memory, as memset and memcpy are made of: all widths, forwards and
 * backwards, overlapping, across pages, with counts of zero. Ends with a checksum of all that it has stored. */
#include <stdio.h>
#include <string.h>

_Alignas(4096) unsigned char area[4 * 4096];
_Alignas(4096) static unsigned char from[4 * 4096];

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

#define STOS(width) \
	static void *stos##width(void *to, unsigned long value, unsigned long n) \
	{ \
		__asm__ volatile("rep stos" #width : "+D"(to), "+c"(n) : "a"(value) : "memory"); \
		return to; \
	}
#define MOVS(width) \
	static void *movs##width(void *to, const void *what, unsigned long n) \
	{ \
		__asm__ volatile("rep movs" #width : "+D"(to), "+S"(what), "+c"(n) : : "memory"); \
		return to; \
	}

STOS(b) STOS(w) STOS(l) STOS(q)
MOVS(b) MOVS(w) MOVS(l) MOVS(q)

static void backwards(unsigned char *to, const unsigned char *what, unsigned long n)
{
	__asm__ volatile("std; rep movsb; cld" : "+D"(to), "+S"(what), "+c"(n) : : "memory");
}

int main(void)
{
	unsigned long sum = 0;
	unsigned char *end;

	for (unsigned i = 0; i < sizeof from; i++)
		from[i] = (unsigned char)(i * 7 + i / 251);
	ready();
	end = stosb(area + 5, 0xab, 9000);       /* two pages and more */
	sum += (unsigned long)(end - area);
	end = stosb(area + 4000, 0xab, 200);     /* all silent */
	sum += (unsigned long)(end - area);
	stosw(area + 4095, 0x1234, 2048);        /* an element on two pages */
	stosl(area + 8192, 0xdeadbeef, 700);
	stosq(area + 8192 + 2801, 0x0123456789abcdef, 300);
	end = movsb(area + 100, from + 33, 6000);
	sum += (unsigned long)(end - area);
	movsw(area + 1, from + 4094, 3000);
	movsl(area + 12288, from, 1024);
	movsq(area + 2000, from + 777, 900);
	movsb(area + 3000, area + 2999, 2000);   /* spreads one byte */
	movsb(area + 6000, area + 9000, 2500);
	backwards(area + 7999, from + 4999, 5000);
	stosb(area, 1, 0);
	stosb(area, 1, 3);
	for (unsigned i = 0; i < sizeof area; i++)
		sum = sum * 31 + area[i];
	printf("string_runs: %016lx\n", sum);
	return 0;
}
