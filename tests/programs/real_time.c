// Threads of which one has a real-time priority allocate on one processor: it must not spin for a lock of another's.
//
//   real_time ROUNDS   root, or CAP_SYS_NICE
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int rounds;
static volatile int over;

static void churn(void) {
    void *blocks[64];
    for (int n = 0; n < 64; n++)
        blocks[n] = malloc(16 << n % 12);
    for (int n = 0; n < 64; n++)
        free(blocks[n]);
}

static void *ordinary(void *unused) {
    while (!over)
        churn();
    return unused;
}

static void *real_time(void *unused) {
    struct sched_param param = {.sched_priority = 50};
    if (pthread_setschedparam(pthread_self(), SCHED_FIFO, &param)) {
        puts("no real-time priority");
        exit(77);
    }
    for (int n = 0; n < rounds; n++) {
        churn();
        struct sigaction action;
        sigaction(SIGUSR1, 0, &action);
        nanosleep(&(struct timespec){.tv_nsec = 20000 + rand() % 50000}, 0);
    }
    over = 1;
    return unused;
}

int main(int argc, char **argv) {
    rounds = argc > 1 ? atoi(argv[1]) : 1000;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(0, &one);
    sched_setaffinity(0, sizeof one, &one);
    pthread_t threads[4];
    for (int n = 0; n < 4; n++)
        pthread_create(&threads[n], 0, n ? ordinary : real_time, 0);
    for (int n = 0; n < 4; n++)
        pthread_join(threads[n], 0);
    puts("done");
    return 0;
}
