/* More instructions that store to one page than ulpf has room to remember; every thousandth stores to what
 * is watched. */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

enum { STORES = 70000, EACH = 4 };
static unsigned char page[4096] __attribute__((aligned(4096)));
unsigned char *watched = page + 128;

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

int main(void)
{
	unsigned char *code = mmap(NULL, STORES * EACH + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unsigned char *at = code;

	for (int i = 1; i <= STORES; i++) {
		/* mov byte [rdi + displacement], value */
		unsigned char store[EACH] = { 0xc6, 0x47, i % 1000 ? 1 + i % 100 : 0, i / 1000 };
		memcpy(at, store, EACH);
		at += EACH;
	}
	*at = 0xc3; /* ret */
	mprotect(code, STORES * EACH + 1, PROT_READ | PROT_EXEC);
	ready();
	((void (*)(unsigned char *))code)(page + 128);
	printf("many_stores: %d\n", *watched);
	return 0;
}
