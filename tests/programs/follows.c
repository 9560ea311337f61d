/* Pointers that change, come and go: follows WHAT. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct pair {
    int x, y;
    long z[4];
    struct pair *link;
    double weight;
};
struct pair *p;
struct pair **pp;
static struct pair a, b;
struct holder {
    long before;
    struct pair pairs[4];
} *holder;
static struct holder held;
static volatile int rounds;

#define SET(place, value) (*(volatile __typeof__(place) *)&(place) = (value))

/* Makes a stop for debuggers possible. */
__attribute__((noinline)) void here(int n) { __asm__ volatile("" : : "r"(n) : "memory"); }

static void plain(void) {
    SET(a.x, 1); /* not watched */
    SET(p, &a);
    SET(p->x, 2);
    here(1);
    SET(p, &b);
    here(2);
    SET(p->x, 3);
    SET(a.x, 4); /* not watched */
    SET(p, NULL);
    SET(b.x, 5); /* not watched */
    here(3);
    SET(p, &a);
    SET(p->x, 6);
    SET(p->y, 7);
    SET(p->z[2], 8);
    SET(p, &a); /* as it was */
    SET(pp, &p);
    SET((*pp)->x, 9);
    SET(*pp, &b);
    SET((*pp)->x, 10);
    SET(p->weight, 2.5);
    SET(p->weight, 6.5);
}

/* NULL when it is watched; what it leads to has elements, and a list's first node, that do not stand at its beginning. */
static void elements(void) {
    SET(p, &a);
    SET(holder, &held);
    for (int n = 0; n < 4; n++) {
        SET(p->z[n], 10 + n);
        SET(holder->pairs[n].x, 20 + n);
    }
    SET(held.pairs[2].link, &b);
    SET(b.x, 30);
}

/* The other thread uses a pointer as soon as it sees it. */
static void *taker(void *unused) {
    struct pair *last = NULL;
    for (int n = 0; n < rounds; n++) {
        struct pair *now;
        while ((now = __atomic_load_n(&p, __ATOMIC_ACQUIRE)) == last)
            ;
        SET(now->x, n);
        last = now;
        __atomic_store_n(&last->link, last, __ATOMIC_RELEASE);
    }
    return unused;
}

static void race(void) {
    enum { PLACES = 5 };
    struct pair *places[PLACES];
    for (int i = 0; i < PLACES; i++)
        places[i] = aligned_alloc(4096, 4096);
    for (int i = 0; i < PLACES; i++)
        memset(places[i], 0, 4096);
    pthread_t other;
    pthread_create(&other, NULL, taker, NULL);
    for (int n = 0; n < rounds; n++) {
        struct pair *next = places[n % PLACES];
        __atomic_store_n(&next->link, NULL, __ATOMIC_RELAXED);
        __atomic_store_n(&p, next, __ATOMIC_RELEASE);
        while (!__atomic_load_n(&next->link, __ATOMIC_ACQUIRE))
            ;
    }
    pthread_join(other, NULL);
}

/* The target of the pointer is mapped later, unmapped, and mapped again. */
static void mapped(void) {
    size_t page = 4096;
    struct pair *there = mmap(NULL, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(there, page);
    SET(p, there);
    for (int n = 1; n < 4; n++) {
        if (mmap(there, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != there)
            abort();
        SET(p->x, n);
        munmap(there, page);
    }
    /* The pointer itself lies in memory that comes and goes. */
    pp = mmap(there, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    SET(*pp, &a);
    SET(a.x, 4);
    munmap(pp, page);
    SET(a.x, 5); /* not watched */
    pp = mmap(pp, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    SET(a.x, 6); /* not watched: the page is new, and NULL */
    SET(*pp, &b);
    SET(b.x, 7);
}

/* realloc moves it, free ends it. */
static void moved(void) {
    SET(p, malloc(sizeof *p));
    for (int n = 1; n < 8; n++) {
        struct pair *old = p;
        SET(p, realloc(p, sizeof *p * 1000 * n));
        if (old != p)
            here(n);
        SET(p->x, n);
    }
    struct pair *last = p;
    SET(p, NULL);
    memset(last, 1, sizeof *last);
    free(last);
}

/* A handler runs between the pointer's change and its use. */
static void handler(int signal) { SET(p->x, signal); }

static void signalled(void) {
    signal(SIGUSR1, handler);
    for (int n = 0; n < 100; n++) {
        SET(p, n % 2 ? &a : &b);
        raise(SIGUSR1);
    }
}

/* Only a child, or another program, does it. */
static void forked(void) {
    SET(p, &a);
    if (!fork()) {
        SET(p, &b);
        SET(p->x, 1);
        _exit(0);
    }
    SET(p->x, 2);
}

/* Moves the pointer between two pages, `rounds` times, to measure the cost of a changed pointer. */
static void often(void) {
    struct pair *places[2] = {aligned_alloc(4096, 4096), aligned_alloc(4096, 4096)};
    for (int n = 0; n < rounds; n++) {
        SET(p, places[n % 2]);
        SET(p->x, n);
    }
}

int main(int argc, char **argv) {
    const struct {
        const char *name;
        void (*run)(void);
    } all[] = {{"plain", plain}, {"race", race},   {"mapped", mapped}, {"moved", moved}, {"signalled", signalled},
               {"forked", forked}, {"often", often}, {"elements", elements}};
    rounds = argc > 2 ? atoi(argv[2]) : 1000;
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
        if (argc > 1 && !strcmp(argv[1], all[i].name))
            return all[i].run(), 0;
    return 2;
}
