/* Errors for `ulpf check` to find: one for each word, each in a function of its own name. `none`: no error at all, in
 * many threads and children. */
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define ERROR(name) static __attribute__((noinline)) void name(void)

static void *volatile kept;

ERROR(write_behind) { char *p = malloc(24); p[24] = 1; free(p); }
ERROR(write_before) { char *p = malloc(24); p[-1] = 1; free(p); }
ERROR(read_behind) { volatile char *p = malloc(1000); kept = (void *)(long)p[1003]; free((void *)p); }
ERROR(last_of_many)
{
    int *all = calloc(1000, sizeof *all);
    for (int i = 0; i <= 1000; i++)
        all[i] = i;
    free(all);
}
ERROR(copy_behind) { char *p = malloc(10); memcpy(p, "0123456789abc", 13); free(p); }
ERROR(copy_from_behind) { char *p = malloc(20), to[24]; memset(p, 1, 20); memcpy(to, p, 24); kept = (void *)(long)to[23]; free(p); }
ERROR(large_behind) { char *p = malloc(3 << 20); p[(3 << 20) + 5] = 1; free(p); }
ERROR(by_the_kernel) { char *p = malloc(8); kept = (void *)(long)read(0, p, 16); free(p); }
ERROR(use_after_free) { volatile int *p = malloc(40); free((void *)p); kept = (void *)(long)p[3]; }
ERROR(use_after_realloc) { volatile int *p = malloc(40); kept = realloc((void *)p, 80); p[1] = 7; free(kept); }
ERROR(free_twice) { char *p = malloc(10); free(p); free(p); }
ERROR(free_inside) { char *p = malloc(10); free(p + 1); free(p); }
ERROR(realloc_of_freed) { char *p = malloc(10); free(p); kept = realloc(p, 20); }
ERROR(realloc_inside) { char *p = malloc(10); kept = realloc(p + 1, 20); free(p); }
ERROR(free_of_stack) { char here[10]; kept = here; free(kept); }
ERROR(lose)
{
    void *volatile *p = kept = malloc(5000);
    *p = malloc(16);
    p = NULL;
    kept = NULL;
}

/* Clears pointers that remain in registers and on the stack. */
static __attribute__((noinline)) void scrub(void)
{
    char much[4096];
    memset(much, 0, sizeof much);
    kept = much;
    kept = NULL;
}

static void *works(void *n)
{
    char *block[64] = { 0 };
    unsigned seed = (unsigned)(long)n;
    for (int i = 0; i < 20000; i++) {
        int at = rand_r(&seed) % 64;
        size_t size = rand_r(&seed) % 700;
        switch (rand_r(&seed) % 4) {
        case 0: free(block[at]); block[at] = malloc(size); break;
        case 1: free(block[at]); block[at] = calloc(1, size); break;
        case 2: block[at] = realloc(block[at], size + 1); break;
        case 3: free(block[at]); block[at] = aligned_alloc(64, (size + 63) / 64 * 64); break;
        }
        if (block[at])
            memset(block[at], i, malloc_usable_size(block[at]));
    }
    for (int i = 0; i < 64; i++)
        free(block[i]);
    return NULL;
}

static int none(void)
{
    pthread_t thread[4];
    for (long n = 0; n < 4; n++)
        pthread_create(&thread[n], NULL, works, (void *)(n + 1));
    for (int n = 0; n < 4; n++)
        pthread_join(thread[n], NULL);
    char *text = strdup("of the parent"), *more = NULL;
    if (asprintf(&more, "%s, %zu characters", text, strlen(text)) < 0)
        return 1;
    int bad = strcmp(strchr(more, ','), ", 13 characters") != 0;
    for (int n = 0; n < 20; n++) {
        pid_t child = fork();
        if (child == 0) {
            char *p = malloc(100000);
            p = realloc(p, 3000000);
            memset(p, 1, 3000000);
            free(p);
            works((void *)7);
            _exit(strcmp(text, "of the parent") == 0 ? 3 : 4);
        }
        int status;
        if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 3)
            bad = 1;
    }
    free(text);
    free(more);
    return bad;
}

int main(int count, char **word)
{
    static const struct { const char *name; void (*makes)(void); } all[] = {
#define E(name) { #name, name }
        E(write_behind), E(write_before), E(read_behind), E(last_of_many), E(copy_behind), E(copy_from_behind), E(large_behind),
        E(by_the_kernel), E(use_after_free), E(use_after_realloc), E(free_twice), E(free_inside), E(free_of_stack), E(lose),
        E(realloc_of_freed), E(realloc_inside),
    };
    if (count < 2 || strcmp(word[1], "none") == 0)
        return none();
    for (size_t n = 0; n < sizeof all / sizeof *all; n++)
        if (strcmp(word[1], all[n].name) == 0) {
            all[n].makes();
            scrub();
            return 5;
        }
    return 64;
}
