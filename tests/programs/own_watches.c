/* Stores of many kinds, the same in each run: to compare where GDB stops with the watches, conditions and ignore
 * counts that a test sets at ready(). No system calls and no string instructions among them. */
#include <stdio.h>

struct box {
    int a;
    short b;
    char c;
};

int counter, toggle;
static long sum;
unsigned bits;
struct box boxes[3] = {{1, 2, 3}, {4, 5, 6}, {7, 8, 9}};
struct box *at = boxes;
int table[8];

__attribute__((noinline)) void ready(void)
{
    asm volatile("");
}

__attribute__((noinline)) void done(void)
{
    asm volatile("");
}

/* 0, 1, 0, 1: what was there before is there again. */
__attribute__((noinline)) void flip(int n)
{
    for (int k = 0; k < n; k++)
        toggle = !toggle;
}

__attribute__((noinline)) void move(int i)
{
    at->a += i;
    if (i % 5 == 4)
        at = &boxes[i % 3];
    at->b ^= 3;
}

__attribute__((noinline)) int deeper(int depth, int by)
{
    volatile int mine = depth;
    for (int i = 0; i < 3; i++) {
        mine += by;
        sum += mine;
    }
    if (depth > 0)
        mine += deeper(depth - 1, by + 1);
    mine -= 1;
    return mine;
}

__attribute__((noinline)) void fill(int with)
{
    for (int i = 0; i < 8; i++)
        table[i] = with > i ? with : table[i];
}

int main(void)
{
    volatile int round = 0;
    ready();
    for (int i = 0; i < 60; i++) {
        round = i;
        counter++;
        flip(i % 4);
        bits = bits * 1103515245u + 12345u;
        move(i);
        if (i % 6 == 0)
            sum += deeper(2, i);
        fill(i % 11);
        if (i % 7 == 3)
            counter -= 2;
        counter = counter; /* the same again */
    }
    done();
    printf("%d %ld %d\n", counter, sum, round);
    return 0;
}
