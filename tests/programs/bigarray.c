/* Stores at a dozen places of a one-megabyte array. */
#include <stdio.h>

unsigned char big[1 << 20];

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

int main(void)
{
	unsigned seed = 12345;
	unsigned long sum = 0;

	ready();
	for (int i = 0; i < 12; i++) {
		seed = seed * 1103515245u + 12345u;
		big[(seed >> 8) % sizeof big] = i + 1;
	}
	for (unsigned long i = 0; i < sizeof big; i++)
		sum += big[i] * (i % 251);
	printf("bigarray: sum %lu\n", sum);
	return 0;
}
