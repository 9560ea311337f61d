/* A watch on a local variable ends with the frame that holds it. */
#include <stdio.h>

__attribute__((noinline)) static int inner(int n)
{
	int depth_sum = 0; /* watch depth_sum: goes out of scope when inner returns */

	for (int i = 1; i <= n; i++)
		depth_sum += i;
	return depth_sum;
}

__attribute__((noinline)) static int recurse(int n)
{
	int here = n * 2;

	if (n > 0)
		here += recurse(n - 1);
	return here;
}

int main(void)
{
	int first = inner(3);
	int second = inner(4);
	int third = recurse(5);

	printf("locals: %d %d %d\n", first, second, third);
	return 0;
}
