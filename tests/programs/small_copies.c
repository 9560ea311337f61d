/* Copies 1, 2, 3 and 5 bytes, again and again: C libraries have a store for a byte that larger copies come to, too, and jumps
 * lead to it, and to what stands right behind it.
 *
 *   small_copies ROUNDS
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char copied[4096];

int main(int argc, char **argv)
{
	static const size_t sizes[] = { 1, 2, 3, 5 };
	static const char *from = "abcdefgh";
	long rounds = argc > 1 ? atol(argv[1]) : 1000;
	unsigned long sum = 0;
	void *(*volatile copy)(void *, const void *, size_t) = memcpy;

	for (long n = 0; n < rounds; n++)
		copy(copied + n % 4000, from + n % 3, sizes[n % 4]);
	for (size_t n = 0; n < sizeof(copied); n++)
		sum = sum * 31 + copied[n];
	printf("small_copies: %lx\n", sum);
	return 0;
}
