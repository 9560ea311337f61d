/* Functions whose locals are watched: each notes what it stores to `mine`. A watch on mine has just these hits, whatever
 * else uses the stack. */
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Stores, and says so once the frame is not in use. */
static int noted[1 << 16];
static int notes;
#define STORE(to, value) ((to) = (value), noted[__atomic_fetch_add(&notes, 1, __ATOMIC_SEQ_CST)] = (to))

/* Overwrites the remains of all frames below. */
__attribute__((noinline)) static void use_the_stack(void) {
    volatile char all[16384];
    for (size_t i = 0; i < sizeof all; i++)
        all[i] = (char) i;
}

__attribute__((noinline)) static int recursion(int depth) {
    volatile int mine;
    STORE(mine, depth);
    if (depth > 0)
        STORE(mine, mine + recursion(depth - 1));
    return mine;
}

static jmp_buf here;

__attribute__((noinline)) static int jumps(int depth) {
    volatile int mine;
    STORE(mine, depth);
    if (depth == 0)
        longjmp(here, 1);
    if (depth < 0)
        return depth;
    STORE(mine, jumps(depth - 1));
    return mine;
}

__attribute__((noinline)) static int blocks(int turns) {
    int sum = 0;
    for (int i = 0; i < turns; i++) {
        volatile int mine;
        STORE(mine, i);
        sum += mine;
    }
    {
        volatile long mine;
        STORE(mine, sum);
        sum += (int) mine;
    }
    return sum;
}

struct pair {
    int first, second;
};

__attribute__((noinline)) static int parts(struct pair *other) {
    volatile struct pair mine;
    struct pair *volatile to = other;
    volatile int table[4];
    STORE(mine.first, 1);
    STORE(mine.second, 2);
    for (int i = 0; i < 4; i++)
        STORE(table[i], 10 * i);
    STORE(to->second, 7);
    return mine.first + table[3] + to->second;
}

__attribute__((noinline)) static void handled(int number) {
    volatile int mine;
    STORE(mine, number);
    if (number == SIGUSR1)
        raise(SIGUSR2);
    STORE(mine, -number);
}

static void *thread(void *depth) {
    for (int turn = 0; turn < 20; turn++) {
        recursion((int) (intptr_t) depth);
        use_the_stack();
    }
    return NULL;
}

static void *leaves(void *unused) {
    volatile int mine;
    STORE(mine, 1);
    if (unused == NULL)
        pthread_exit(NULL);
    STORE(mine, 2);
    return NULL;
}

__attribute__((noinline, aligned(64))) static int aligned(int number) {
    volatile int mine __attribute__((aligned(128)));
    STORE(mine, number);
    return mine;
}

int main(int count, char **arguments) {
    const char *what = count > 1 ? arguments[1] : "";
    if (!strcmp(what, "recursion")) {
        for (int depth = 0; depth < 4; depth++) {
            recursion(depth);
            use_the_stack();
        }
    } else if (!strcmp(what, "deep")) {
        recursion(1000);
    } else if (!strcmp(what, "jumps")) {
        for (int depth = 0; depth < 3; depth++) {
            if (!setjmp(here))
                jumps(depth);
            use_the_stack();
        }
    } else if (!strcmp(what, "blocks")) {
        blocks(3);
        use_the_stack();
        blocks(1);
    } else if (!strcmp(what, "parts")) {
        struct pair other = {0, 0};
        parts(&other);
        other.second = 9;
        use_the_stack();
    } else if (!strcmp(what, "handlers")) {
        static char stack[1 << 16];
        stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
        sigaltstack(&alternate, NULL);
        struct sigaction on_it = {.sa_handler = handled, .sa_flags = SA_ONSTACK}, not = {.sa_handler = handled};
        sigaction(SIGUSR2, &on_it, NULL);
        sigaction(SIGUSR1, &not, NULL);
        raise(SIGUSR1);
        use_the_stack();
    } else if (!strcmp(what, "threads")) {
        pthread_t threads[3];
        for (int i = 0; i < 3; i++)
            pthread_create(&threads[i], NULL, thread, (void *) (intptr_t) (i + 1));
        for (int i = 0; i < 3; i++)
            pthread_join(threads[i], NULL);
    } else if (!strcmp(what, "leaves")) {
        for (int i = 0; i < 3; i++) {
            pthread_t one;
            pthread_create(&one, NULL, leaves, NULL);
            pthread_join(one, NULL);
            pthread_create(&one, NULL, thread, 0);
            pthread_join(one, NULL);
        }
    } else if (!strcmp(what, "fork")) {
        fflush(stdout);
        if (fork() == 0) {
            recursion(1);
            notes = 0;
            _exit(0);
        }
        wait(NULL);
        recursion(2);
    } else if (!strcmp(what, "aligned")) {
        aligned(3);
    } else {
        return 2;
    }
    for (int i = 0; i < notes; i++)
        printf("%d\n", noted[i]);
    return 0;
}
