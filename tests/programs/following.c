/* Changes pointers and lists at random, and notes each store to what they lead to: the oracle of watches that follow.
   following MUTATIONS SEED THREADS FILE: FILE gets a line for each store that a watch on one of these should see,
   `number address length value`: 0 head->value, 1 head->next->next->value, 2 *pair[1]->inner, 3 other->value. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <emmintrin.h>

struct node {
    long padding[3];
    long value;
    struct node *next;
    long *inner;
    char tail[200];
};

enum { NODES = 48 };
struct node *head, *other;
struct node *pair[2] __attribute__((aligned(16)));
static struct node *nodes[NODES];

struct noted {
    int watch, len;
    uint64_t addr, value;
};
static struct noted *noted;
static size_t count, room;
static uint64_t state;
static int wire[2];
static long left;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static unsigned any(unsigned n) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (state >> 11) % n;
}

static void note(int watch, void *addr, int len, uint64_t value) {
    if (count == room)
        noted = realloc(noted, (room = room * 2 + 1024) * sizeof *noted);
    noted[count++] = (struct noted){watch, len, (uint64_t)addr, value};
}

/* Records the watches that see the next store, which is to these bytes. */
static void expect(void *addr, int len, uint64_t value) {
    struct node *second = head ? head->next : NULL, *third = second ? second->next : NULL;
    long *at[4] = {
        head ? &head->value : NULL,
        third ? &third->value : NULL,
        pair[1] ? pair[1]->inner : NULL,
        other ? &other->value : NULL,
    };
    for (int w = 0; w < 4; w++)
        if (at[w] && (char *)addr >= (char *)at[w] && (char *)addr + len <= (char *)at[w] + 8)
            note(w, addr, len, value);
}

__attribute__((noinline)) static void store8(void *to, uint64_t v) { *(volatile uint64_t *)to = v; }
__attribute__((noinline)) static void store4(void *to, uint32_t v) { *(volatile uint32_t *)to = v; }
__attribute__((noinline)) static void store1(void *to, uint8_t v) { *(volatile uint8_t *)to = v; }
__attribute__((noinline)) static void bytes8(void *to, uint64_t v) {
    uint64_t *from = &v;
    long n = 8;
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(n) : : "memory");
}

static void poke(long *value) {
    uint64_t v = state * 0x9e3779b97f4a7c15u;
    switch (any(5)) {
    case 0:
        expect((char *)value + 4, 4, v & 0xffffffff);
        return store4((char *)value + 4, v);
    case 1:
        expect((char *)value + 3, 1, v & 0xff);
        return store1((char *)value + 3, v);
    case 2:
        v = *value + 1;
        expect(value, 8, v);
        __sync_fetch_and_add(value, 1);
        return;
    default:
        expect(value, 8, v);
        return store8(value, v);
    }
}

static struct node *any_node(void) { return any(6) ? nodes[any(NODES)] : NULL; }

/* Pointers are changed in as many ways as there are. */
static void point(struct node **at, struct node *to) {
    switch (any(6)) {
    case 0:
        return (void)__sync_lock_test_and_set(at, to);
    case 1:
        return (void)__sync_val_compare_and_swap(at, *at, to);
    case 2:
        return bytes8(at, (uint64_t)to);
    case 3:
        if (write(wire[1], &to, sizeof to) != sizeof to || read(wire[0], at, sizeof to) != sizeof to)
            abort();
        return;
    case 4:
        /* Half by half: for a moment it leads nowhere, or elsewhere. */
        store4(at, (uint32_t)(uint64_t)to);
        return store4((char *)at + 4, (uint64_t)to >> 32);
    default:
        return store8(at, (uint64_t)to);
    }
}

/* Another node in the place of this one, to which nothing points before it goes. */
static void renew(int n) {
    struct node *old = nodes[n];
    for (int i = 0; i < NODES; i++) {
        if (nodes[i]->next == old)
            point(&nodes[i]->next, NULL);
        if (nodes[i]->inner == &old->value)
            nodes[i]->inner = NULL;
    }
    struct node **roots[] = {&head, &other, &pair[0], &pair[1]};
    for (int i = 0; i < 4; i++)
        if (*roots[i] == old)
            point(roots[i], NULL);
    memset(old, 0xa5, sizeof *old);
    if (any(2)) {
        free(old);
        nodes[n] = calloc(1, sizeof **nodes);
    } else {
        nodes[n] = realloc(old, sizeof *old + 16 * any(64));
        memset(nodes[n], 0, sizeof **nodes);
    }
}

static void mutate(void) {
    struct node *n = nodes[any(NODES)];
    switch (any(12)) {
    case 0:
        return point(&head, any_node());
    case 1:
        return point(&n->next, any(8) ? any_node() : n);
    case 2:
        n->inner = any(4) ? &nodes[any(NODES)]->value : NULL;
        return;
    case 3: {
        struct node *one = any_node(), *two = any_node();
        _mm_store_si128((__m128i *)pair, _mm_set_epi64x((long long)two, (long long)one));
        return;
    }
    case 4:
        return any(8) ? point(&other, any_node()) : renew(any(NODES));
    case 5:
        if (head && head->next)
            return point(&head->next->next, any_node());
        return;
    case 6:
        if (head)
            poke(&head->value);
        return;
    case 7:
        if (pair[1] && pair[1]->inner)
            poke(pair[1]->inner);
        return;
    case 8:
        if (head && head->next && head->next->next)
            poke(&head->next->next->value);
        return;
    default:
        poke(&n->value);
    }
}

static void *work(void *unused) {
    for (;;) {
        pthread_mutex_lock(&mutex);
        if (left-- <= 0) {
            pthread_mutex_unlock(&mutex);
            return unused;
        }
        mutate();
        pthread_mutex_unlock(&mutex);
    }
}

int main(int argc, char **argv) {
    if (argc < 5 || pipe(wire))
        return 2;
    left = atol(argv[1]);
    state = strtoull(argv[2], NULL, 0) * 2 + 1;
    int threads = atoi(argv[3]);
    for (int i = 0; i < NODES; i++)
        nodes[i] = calloc(1, sizeof **nodes);
    if (threads > 1) {
        pthread_t all[64];
        for (int i = 0; i < threads; i++)
            pthread_create(&all[i], NULL, work, NULL);
        for (int i = 0; i < threads; i++)
            pthread_join(all[i], NULL);
    } else {
        work(NULL);
    }
    FILE *to = fopen(argv[4], "w");
    for (size_t i = 0; to && i < count; i++)
        fprintf(to, "%d %#lx %d %#lx\n", noted[i].watch, noted[i].addr, noted[i].len, noted[i].value);
    return !to || fclose(to);
}
