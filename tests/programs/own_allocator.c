/* A program with an allocator of its own, by other names, as servers have. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char memory[1 << 16];
static size_t used;

__attribute__((noinline)) void *pool_alloc(size_t len)
{
	void *block = memory + used;
	used += (len + 15) & ~(size_t)15;
	return used > sizeof memory ? NULL : block;
}

__attribute__((noinline)) void *pool_realloc(void *old, size_t len)
{
	char *block = pool_alloc(len);
	if (old && block)
		memmove(block, old, len);
	return block;
}

__attribute__((noinline)) void pool_free(void *block)
{
	/* (Its code has to have room for a jump.) */
	if (block && (char *)block >= memory + sizeof memory)
		abort();
}

int main(int argc, char **argv)
{
	char *name = pool_alloc(10);
	strcpy(name, "too long a name");
	name = pool_realloc(name, 40);
	pool_free(name);
	printf("%c\n", argc > 1 ? *(volatile char *)name : 'x');
	(void)argv;
	return 0;
}
