/* Memory that no page guard can be in: code that is rewritten, and huge pages. A word of each is written. */
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

long *code, *huge;

__attribute__((noinline)) void ready(void) { __asm__ volatile(""); }

int main(void)
{
    code = mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    huge = mmap(0, 2 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    if (huge == MAP_FAILED)
        huge = 0;
    ready();
    for (int i = 1; i < 4; i++) {
        mprotect(code, 4096, PROT_READ | PROT_WRITE);
        code[8] = 0xc3 + i;
        mprotect(code, 4096, PROT_READ | PROT_EXEC);
        if (huge)
            huge[8] = i;
    }
    printf("%s\n", huge ? "huge" : "none");
    return 0;
}
