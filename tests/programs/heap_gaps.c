/* Allocates blocks of one size, and says how many stretches of 64 KiB they are in: a checked heap has slots of one size in each. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { BLOCKS = 200 };

int main(void)
{
	uintptr_t seen[BLOCKS];
	int n = 0;

	for (int i = 0; i < BLOCKS; i++) {
		uintptr_t at = (uintptr_t)malloc(24) >> 16;
		int known = 0;
		for (int k = 0; k < n; k++)
			known |= seen[k] == at;
		if (!known)
			seen[n++] = at;
	}
	printf("%d\n", n);
	return 0;
}
