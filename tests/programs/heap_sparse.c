// Four tebibytes of address space of which ten pages are used. In one of them is the only pointer to a block of 99 bytes; to
// one of 77 nothing leads. With an argument it is a block of two gibibytes.
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

static char *volatile sparse;

int main(int argc, char **argv)
{
	const size_t len = argc > 1 ? (size_t)2 << 30 : (size_t)4 << 40;
	(void)argv;
	sparse = argc > 1 ? malloc(len) : mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (!sparse || sparse == MAP_FAILED)
		return 3;
	for (size_t n = 1; n < 10; n++)
		sparse[len / 10 * n] = 1;
	*(void *volatile *)(sparse + len - 4096) = malloc(99);
	void *volatile lost = malloc(77);
	lost = NULL;
	puts("done");
	return lost != NULL;
}
