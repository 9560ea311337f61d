/* A table that is read here and there, and written once. */
#include <stdio.h>

int table[4] = { 100, 200, 300, 400 };

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

__attribute__((noinline)) static int sum_ends(void)
{
	return table[0] + table[3];
}

__attribute__((noinline)) static int middle(void)
{
	return table[2];
}

int main(void)
{
	int result;

	ready();
	result = sum_ends();
	result += middle();
	table[2] = 301;
	result += sum_ends();
	result += middle();
	table[2] += 1; /* reads and writes */
	printf("reads: %d\n", result);
	return 0;
}
