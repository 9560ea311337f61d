/* Stores whose first bytes end a page of code: a jump written over them spans two pages. */
#include <stdio.h>

unsigned long counts[4];

#define SEAM(n) \
	__asm__(".text\n.p2align 12\n.skip 4096 - " #n "\n.globl seam" #n "\nseam" #n ":\n\taddq $1, 8(%rdi)\n\tret\n"); \
	void seam##n(unsigned long *before)

SEAM(1);
SEAM(2);
SEAM(3);
SEAM(4);
__asm__(".text\n");

int main(void)
{
	void (*const seams[])(unsigned long *) = { seam1, seam2, seam3, seam4 };

	for (int round = 0; round < 3000; round++)
		for (int n = 0; n < 4; n++)
			seams[n](counts + n - 1);
	for (int n = 0; n < 4; n++)
		printf("page_seams: %lu\n", counts[n]);
	return 0;
}
