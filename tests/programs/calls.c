/* Calls through a table on the heap, and functions whose stack is on the heap: all of it guarded when the heap is watched. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

struct shape {
    long (*area)(struct shape *);
    long side;
};

static void *called_from[2];
static int places;
static ucontext_t here, there;
static long result;

__attribute__((noinline)) static long area(struct shape *s) {
    void *from = __builtin_return_address(0);
    int n = 0;
    while (n < places && called_from[n] != from)
        n++;
    if (n == places && places++ < 2)
        called_from[n] = from;
    return s->side * s->side;
}

__attribute__((noinline)) static long fib(long n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }

static void on_the_heap(void) { result = fib(21); }

int main(void) {
    long sum = 0;
    struct shape *shapes = malloc(64 * sizeof *shapes);
    for (int i = 0; i < 64; i++)
        shapes[i] = (struct shape){area, i};
    for (int round = 0; round < 1000; round++)
        for (int i = 0; i < 64; i++)
            sum += shapes[i].area(&shapes[i]);
    size_t size = 1 << 16;
    char *stack = malloc(size);
    getcontext(&there);
    there.uc_stack.ss_sp = stack;
    there.uc_stack.ss_size = size;
    there.uc_link = &here;
    makecontext(&there, on_the_heap, 0);
    swapcontext(&here, &there);
    /* The return address is the same, whether the call is native or ulpf performs it. */
    printf("%ld %ld, from %d place\n", sum, result, places);
    free(stack);
    free(shapes);
    return 0;
}
