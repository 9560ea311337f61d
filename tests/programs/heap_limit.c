/*
 * Frees a large block and a small one at once, again and again; before that it asks for more than there is: heap_limit BYTES ROUNDS.
 */
#include <stdio.h>
#include <stdlib.h>

enum { BLOCK = 64 << 20, SMALL = 3000 };

int main(int argc, char **argv)
{
	puts(malloc(strtoul(argv[1], NULL, 0)) ? "much memory" : "not so much");
	for (long n = 0; n < atol(argv[2]); n++) {
		char *large = malloc(BLOCK), *small = malloc(SMALL);
		if (!large || !small) {
			printf("no memory in round %ld\n", n);
			return 1;
		}
		large[BLOCK - 1] = small[SMALL - 1] = 1;
		free(large);
		free(small);
	}
	puts("done");
	return 0;
}
