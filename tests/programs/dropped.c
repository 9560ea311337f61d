/* A daemon that has given up root: from then on only root may open its files below /proc. It reads orders:
   e  a use after free
   f  the same in a forked child
   s  a hundred thousand stores to `counter`
   and answers each with a line. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

long counter;
volatile char seen;

__attribute__((noinline)) void advance(void) {
    counter++;
}

__attribute__((noinline)) void use_after_free(void) {
    char *volatile block = malloc(40);
    free(block);
    seen = *block;
}

int main(void) {
    char order;
    if (setgid(54321) || setuid(54321))
        return 1;
    puts("ready");
    fflush(stdout);
    while (read(0, &order, 1) == 1) {
        if (order == 'e')
            use_after_free();
        if (order == 's')
            for (int i = 0; i < 100000; i++)
                advance();
        if (order == 'f') {
            pid_t child = fork();
            if (child == 0) {
                use_after_free();
                advance();
                _exit(0);
            }
            waitpid(child, NULL, 0);
        }
        printf("%c %ld\n", order, counter);
        fflush(stdout);
    }
    return 7;
}
