/* An allocator in the program itself, with the entries of Chromium's, and one more that only the program's own code calls. */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC 0x5041525449544fUL

struct block {
	uint64_t magic;
	size_t size;
};

static char memory[1 << 20] __attribute__((aligned(16)));
static size_t used;

void *malloc(size_t size)
{
	size_t len = sizeof(struct block) + ((size + 15) & ~(size_t)15);
	if (len < size || used + len > sizeof memory)
		return NULL;
	struct block *block = (struct block *)(memory + used);
	used += len;
	*block = (struct block){ MAGIC, size };
	return block + 1;
}

size_t malloc_size(const void *at) { return at ? ((const struct block *)at)[-1].size : 0; }
size_t malloc_usable_size(void *at) { return malloc_size(at); }

__attribute__((noinline)) static void free_unchecked(void *at)
{
	struct block *block = (struct block *)at - 1;
	if (block->magic != MAGIC)
		abort();
	block->magic = 0;
}

void free(void *at)
{
	if (at)
		free_unchecked(at);
}

void *calloc(size_t count, size_t size)
{
	void *at = malloc(count * size);
	return at ? memset(at, 0, count * size) : NULL;
}

void *realloc(void *at, size_t size)
{
	void *to = malloc(size);
	if (to && at) {
		memcpy(to, at, malloc_size(at) < size ? malloc_size(at) : size);
		free(at);
	}
	return to;
}

int posix_memalign(void **at, size_t alignment, size_t size)
{
	*at = alignment <= 16 ? malloc(size) : NULL;
	return *at ? 0 : ENOMEM;
}

int main(void)
{
	for (int n = 1; n < 100; n++) {
		char *block = malloc(n);
		memset(block, n, n);
		free_unchecked(block);
	}
	puts("done");
	return 0;
}
