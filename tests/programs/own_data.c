/* Thread-local data: each thread notes what it stores to its copy, and memory that ended threads have left is used again. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct state {
    int depth;
    char name[12];
};

_Thread_local int counter = 5;
_Thread_local struct state state;
_Thread_local int *to;
static int target[65];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void *work(void *number) {
    int id = (int) (size_t) number;
    counter = 100 * id;
    counter++;
    state.depth = id;
    to = &target[id];
    *to = id;
    pthread_mutex_lock(&lock);
    printf("%d %d\n", 100 * id, counter);
    pthread_mutex_unlock(&lock);
    return NULL;
}

static void *use_stack(void *unused) {
    char all[30000];
    memset(all, 7, sizeof all);
    return all[5] ? unused : NULL;
}

int main(int count, char **arguments) {
    int threads = count > 1 ? atoi(arguments[1]) : 3, rounds = count > 2 ? atoi(arguments[2]) : 2;
    counter = 6;
    for (int round = 0; round < rounds; round++) {
        pthread_t all[64];
        for (int i = 0; i < threads; i++)
            pthread_create(&all[i], NULL, work, (void *) (size_t) (i + 1));
        for (int i = 0; i < threads; i++)
            pthread_join(all[i], NULL);
        pthread_create(&all[0], NULL, use_stack, NULL);
        pthread_join(all[0], NULL);
    }
    counter = 7;
    return 0;
}
