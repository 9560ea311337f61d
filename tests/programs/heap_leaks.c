/* A lost block by each function that allocates, each in a function of its own name. */
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

static void *volatile kept;

#define LOSES(name, block) static __attribute__((noinline)) void name(void) { kept = block; }

LOSES(by_malloc, malloc(11))
LOSES(by_calloc, calloc(1, 12))
LOSES(by_realloc, realloc(malloc(3), 13))
LOSES(by_realloc_of_nothing, realloc(NULL, 14))
LOSES(by_reallocarray, reallocarray(NULL, 1, 15))
LOSES(by_aligned_alloc, aligned_alloc(64, 64))
LOSES(by_memalign, memalign(64, 17))
LOSES(by_posix_memalign, posix_memalign((void **)&kept, 64, 18) ? NULL : kept)
LOSES(by_valloc, valloc(19))
LOSES(by_strdup, strdup("a text of 20 bytes."))

/* Clears pointers that remain in registers and on the stack. */
static __attribute__((noinline)) void scrub(void)
{
    char much[4096];
    memset(much, 0, sizeof much);
    kept = much;
    kept = NULL;
}

int main(void)
{
    by_malloc(), by_calloc(), by_realloc(), by_realloc_of_nothing(), by_reallocarray(), by_aligned_alloc(), by_memalign(), by_posix_memalign();
    by_valloc(), by_strdup();
    scrub();
    return 0;
}
