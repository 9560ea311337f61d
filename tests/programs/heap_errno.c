// Results and errno of the allocator's functions for requests that no heap can serve.
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define TELL(call)                                                                                                            \
    do {                                                                                                                      \
        errno = 0;                                                                                                            \
        void *volatile block = call;                                                                                          \
        printf("%s: %s, errno %d\n", #call, block ? "a block" : "none", errno);                                               \
    } while (0)

int main(void) {
    volatile size_t half = PTRDIFF_MAX, all = SIZE_MAX, none = 0;
    void *own = malloc(16);
    TELL(malloc(half));
    TELL(malloc(all));
    TELL(malloc(none));
    TELL(calloc(1, half));
    TELL(calloc(half, 4));
    TELL(calloc(all, none));
    TELL(realloc(own, half));
    TELL(realloc(0, all));
    TELL(aligned_alloc(64, half));
    TELL(memalign(4096, all));
    TELL(memalign(half + 2, 10));
#ifdef __GLIBC__
    TELL(reallocarray(own, half, 8));
    TELL(valloc(half));
    TELL(pvalloc(all));
#endif
    void *block = own;
    printf("posix_memalign: %d %d %d, %s\n", posix_memalign(&block, 3, 10), posix_memalign(&block, 24, 10),
           posix_memalign(&block, 64, half), block == own ? "untouched" : "written");
    errno = 5;
    free(own);
    free(malloc(100));
    printf("errno %d\n", errno);
    return 0;
}
