/* Locals of main, of a function and of a loop: watches on them, in one run and the next.
 *
 *   break ready; run; up; ulpf watch all; ulpf watch twice; up; ulpf watch mine
 */
#include <stdio.h>

int total;

__attribute__((noinline)) void ready(void)
{
    __asm__ volatile("");
}

__attribute__((noinline)) int sum(int n)
{
    int all = 0;
    for (int i = 0; i < n; i++) {
        int twice = 2 * i;
        all += twice;
        if (i == 1)
            ready();
    }
    total += all;
    return all;
}

int main(void)
{
    int mine = 1;
    mine += sum(3);
    mine += 2;
    printf("locals_again: %d\n", mine);
    return 0;
}
