/* Three threads make an error of the heap each, at the same time and in functions of their own names, after much that is
 * right; a fourth one makes none. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define ROUNDS 2000
#define MIDDLE 1000

static pthread_barrier_t all_there;

static __attribute__((noinline)) void fill(char *p, int count)
{
    for (int i = 0; i < count; i++)
        p[i] = (char)(i + 1);
}

static void *spills(void *unused)
{
    pthread_barrier_wait(&all_there);
    for (int round = 0; round < ROUNDS; round++) {
        char *p = malloc(64);
        fill(p, round == MIDDLE ? 65 : 64);
        free(p);
    }
    return unused;
}

static void *reuses(void *unused)
{
    pthread_barrier_wait(&all_there);
    for (int round = 0; round < ROUNDS; round++) {
        int *volatile p = malloc(40);
        p[3] = round;
        free(p);
        if (round == MIDDLE)
            p[3] = 7;
    }
    return unused;
}

static void *frees_twice(void *unused)
{
    pthread_barrier_wait(&all_there);
    for (int round = 0; round < ROUNDS; round++) {
        char *volatile p = malloc(10);
        free(p);
        if (round == MIDDLE)
            free(p);
    }
    return unused;
}

static void *is_right(void *unused)
{
    pthread_barrier_wait(&all_there);
    for (int round = 0; round < ROUNDS; round++) {
        char *p = calloc(1, 100);
        fill(p, 100);
        free(p);
    }
    return unused;
}

int main(void)
{
    static void *(*const all[])(void *) = { spills, reuses, frees_twice, is_right };
    pthread_t thread[4];
    pthread_barrier_init(&all_there, NULL, 4);
    for (int n = 0; n < 4; n++)
        pthread_create(&thread[n], NULL, all[n], NULL);
    for (int n = 0; n < 4; n++)
        pthread_join(thread[n], NULL);
    puts("heap_stops: done");
    return 0;
}
