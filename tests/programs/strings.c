/* String instructions in both directions, locked and wide atomics, bit strings that reach beyond
 * their word, pushes and calls on a stack in the heap. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

_Alignas(4096) char text[3 * 4096];
char source[3 * 4096];
_Alignas(16) unsigned long pair[2] = { 1, 2 };
unsigned long counter = 5, bits[64];
static ucontext_t back, forth;
static char *heap_stack;
int calls;

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

static void rep_movs(void *to, const void *from, unsigned long n)
{
	__asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(n) : : "memory");
}

static void rep_movs_down(char *to, const char *from, unsigned long n)
{
	to += n - 1;
	from += n - 1;
	__asm__ volatile("std\n\trep movsb\n\tcld" : "+D"(to), "+S"(from), "+c"(n) : : "memory");
}

static void rep_stos(void *to, unsigned long value, unsigned long n)
{
	__asm__ volatile("rep stosq" : "+D"(to), "+c"(n) : "a"(value) : "memory");
}

static void on_heap(void)
{
	volatile int local = 1;

	for (int i = 0; i < 10; i++)
		local += i;
	calls += local;
}

int main(void)
{
	unsigned long sum = 0, low = 1, high = 2;
	unsigned char done;

	for (unsigned i = 0; i < sizeof source; i++)
		source[i] = (char)(i * 7);
	heap_stack = malloc(65536);
	ready();
	rep_movs(text, source, sizeof text);
	rep_stos(text + 64, 0x1122334455667788, 16);
	rep_movs_down(text + 1, source, 200);
	rep_movs(text + 100, source, 0); /* nothing moves: no hit */
	__asm__ volatile("lock cmpxchg16b %0\n\tsete %1"
			 : "+m"(pair), "=q"(done), "+a"(low), "+d"(high)
			 : "b"(10UL), "c"(20UL)
			 : "cc");
	__asm__ volatile("lock cmpxchg16b %0" : "+m"(pair), "+a"(low), "+d"(high) : "b"(1UL), "c"(1UL) : "cc");
	__asm__ volatile("lock xaddq %1, %0" : "+m"(counter), "+r"(low) : : "cc");
	__asm__ volatile("xchgq %1, %0" : "+m"(counter), "+r"(high));
	__asm__ volatile("lock incq %0\n\tnegq %0\n\tnotq %0\n\trolq $3, %0" : "+m"(counter) : : "cc");
	__asm__ volatile("btsq %1, %0" : "+m"(bits[32]) : "r"(-65L) : "cc", "memory");  /* in bits[30] */
	__asm__ volatile("btcq %1, %0" : "+m"(bits[32]) : "r"(1000L) : "cc", "memory"); /* in bits[47] */
	getcontext(&forth);
	forth.uc_stack.ss_sp = heap_stack;
	forth.uc_stack.ss_size = 65536;
	forth.uc_link = &back;
	makecontext(&forth, on_heap, 0);
	swapcontext(&back, &forth);
	memset(text + 5000, 1, 3000);
	memmove(text + 5001, text + 5000, 3000);
	for (unsigned i = 0; i < sizeof text; i++)
		sum = sum * 31 + (unsigned char)text[i];
	printf("strings: pair %lu %lu (%d), counter %lu, bits %lx %lx, calls %d, checksum %016lx\n",
	       pair[0], pair[1], done, counter, bits[30], bits[47], calls, sum);
	return 0;
}
