/* Limits its data to 256 MiB, then allocates 64 MiB in a mapping of its own and 16 MiB by brk. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

int main(void) {
    struct rlimit limit = {256 << 20, 256 << 20};
    if (setrlimit(RLIMIT_DATA, &limit))
        return 1;
    char *large = malloc(64 << 20);
    char *top = sbrk(16 << 20);
    if (large != NULL)
        memset(large, 1, 64 << 20);
    if (top != (void *)-1)
        memset(top, 2, 16 << 20);
    printf("large: %s, brk: %s\n", large ? "yes" : "no", top != (void *)-1 ? "yes" : "no");
    free(large);
    return 0;
}
