/* Stores whose first bytes end a page of code: a jump written over them spans two pages. */
#include <stdio.h>

unsigned long counts[4];

#define BOUNDARY(n) \
	__asm__(".text\n.p2align 12\n.skip 4096 - " #n "\n.globl boundary" #n "\nboundary" #n ":\n\taddq $1, 8(%rdi)\n\tret\n"); \
	void boundary##n(unsigned long *before)

BOUNDARY(1);
BOUNDARY(2);
BOUNDARY(3);
BOUNDARY(4);
__asm__(".text\n");

int main(void)
{
	void (*const boundaries[])(unsigned long *) = { boundary1, boundary2, boundary3, boundary4 };

	for (int round = 0; round < 3000; round++)
		for (int n = 0; n < 4; n++)
			boundaries[n](counts + n - 1);
	for (int n = 0; n < 4; n++)
		printf("page_boundaries: %lu\n", counts[n]);
	return 0;
}
