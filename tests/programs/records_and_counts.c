/* One instruction stores to a stack and to the heap: whole pages of either may be watched. */
#include <stdlib.h>

#define LARGE 65536
#define BLOCK 20000

char *block;

__attribute__((noinline)) void ready(volatile char *array) { __asm__ volatile("" : : "r"(array) : "memory"); }
__attribute__((noinline)) void between(volatile char *array) { __asm__ volatile("" : : "r"(array) : "memory"); }
__attribute__((noinline)) void done(void) { __asm__ volatile("" : : : "memory"); }
__attribute__((noinline)) void fill(volatile char *p, int n)
{
    for (int i = 0; i < n; i++)
        p[i] = i;
}

int main(void)
{
    volatile char array[LARGE];
    block = malloc(BLOCK);
    array[0] = 0;
    ready(array);
    for (int i = 0; i < 20; i++)
        fill(array, LARGE);
    between(array);
    for (int i = 0; i < 20; i++)
        fill(array, LARGE);
    fill(block, BLOCK);
    done();
    return array[5] != 5;
}
