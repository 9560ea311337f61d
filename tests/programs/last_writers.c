/* Writes at random into a block, into static data and into mapped memory, by functions each of which stores in its own way,
 * on two threads that take turns. It notes the last writer of each byte, which the records of ulpf have to name, too.
 * At the end it prints these notes, and stays.
 *
 *     last_writers ROUNDS [SEED] */
#include <fcntl.h>
#include <immintrin.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#define SIZE 12288
#define MOST 200

static unsigned char bytes[SIZE];
static unsigned char *memory[3];
/* For each byte of each memory: the number of the writer, and the thread. 0: not written. */
static unsigned char *writer[3], *by[3];
static int zero;
static unsigned char source[4 * MOST];
static volatile int done;

#define WRITER static __attribute__((noinline)) unsigned
WRITER store_1(unsigned char *p, uint64_t v, unsigned n) { (void)n; *(volatile uint8_t *)p = v; return 1; }
WRITER store_2(unsigned char *p, uint64_t v, unsigned n) { (void)n; *(volatile uint16_t *)p = v; return 2; }
WRITER store_4(unsigned char *p, uint64_t v, unsigned n) { (void)n; *(volatile uint32_t *)p = v; return 4; }
WRITER store_8(unsigned char *p, uint64_t v, unsigned n) { (void)n; *(volatile uint64_t *)p = v; return 8; }
WRITER constant(unsigned char *p, uint64_t v, unsigned n) { (void)v; (void)n; *(volatile uint64_t *)p = 0x1234; return 8; }
WRITER vector(unsigned char *p, uint64_t v, unsigned n) { (void)n; _mm_storeu_si128((__m128i *)p, _mm_set1_epi64x(v)); return 16; }
WRITER real(unsigned char *p, uint64_t v, unsigned n) { (void)n; *(volatile long double *)p = v; return 10; }
WRITER add(unsigned char *p, uint64_t v, unsigned n) { (void)n; *(volatile uint32_t *)p += v; return 4; }
WRITER exchange(unsigned char *p, uint64_t v, unsigned n) { (void)n; __atomic_fetch_add((uint64_t *)((uintptr_t)p & ~7ul), v, __ATOMIC_SEQ_CST); return 0; }
WRITER loop(unsigned char *p, uint64_t v, unsigned n) { for (unsigned i = 0; i < n; i++) ((volatile unsigned char *)p)[i] = v + i; return n; }
WRITER copy(unsigned char *p, uint64_t v, unsigned n) { memcpy(p, source + v % MOST, n); return n; }
WRITER move(unsigned char *p, uint64_t v, unsigned n) { (void)v; memmove(p, p + 1, n); return n; }
WRITER fill(unsigned char *p, uint64_t v, unsigned n) { memset(p, v, n); return n; }
WRITER string(unsigned char *p, uint64_t v, unsigned n) { (void)v; source[3 * MOST + n - 1] = 0; strcpy((char *)p, (char *)source + 3 * MOST); source[3 * MOST + n - 1] = 1; return n; }
WRITER rep_movs(unsigned char *p, uint64_t v, unsigned n)
{
    unsigned char *from = source + v % MOST;
    unsigned long count = n;
    __asm__ volatile("rep movsb" : "+D"(p), "+S"(from), "+c"(count) : : "memory");
    return n;
}
WRITER rep_stos(unsigned char *p, uint64_t v, unsigned n)
{
    unsigned long count = n / 8;
    __asm__ volatile("rep stosq" : "+D"(p), "+c"(count) : "a"(v) : "memory");
    return n / 8 * 8;
}
WRITER reading(unsigned char *p, uint64_t v, unsigned n) { (void)v; return read(zero, p, n); }
WRITER scattered(unsigned char *p, uint64_t v, unsigned n)
{
    (void)v;
    struct iovec parts[] = {{p, n / 2}, {p + n / 2, n - n / 2}};
    return readv(zero, parts, 2);
}
static unsigned (*const writers[])(unsigned char *, uint64_t, unsigned) = {
    store_1, store_2, store_4, store_8, constant, vector, real, add, exchange, loop, copy, move, fill, string, rep_movs, rep_stos, reading, scattered,
};
#define WRITERS (sizeof writers / sizeof *writers)

static uint64_t state;
static uint64_t next(void)
{
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

static void once(int thread)
{
    int of = next() % 3;
    unsigned kind = next() % WRITERS;
    /* System calls are slow. */
    if (kind >= WRITERS - 2 && next() % 4)
        kind = next() % (WRITERS - 2);
    unsigned n = 1 + next() % MOST, at = next() % (SIZE - MOST - 16);
    unsigned char *p = memory[of] + at;
    unsigned len = writers[kind](p, next(), n);
    if (writers[kind] == exchange)
        at = ((uintptr_t)p & ~7ul) - (uintptr_t)memory[of], len = 8;
    memset(writer[of] + at, kind + 1, len);
    memset(by[of] + at, thread, len);
}

/* The kernel clears a page. */
static __attribute__((noinline)) void forget(int thread)
{
    madvise(memory[2] + 4096, 4096, MADV_DONTNEED);
    memset(writer[2] + 4096, 254, 4096);
    memset(by[2] + 4096, thread, 4096);
}

static long rounds;
static volatile long turn;
static pid_t tids[3];

static void play(int thread)
{
    tids[thread] = gettid();
    for (;;) {
        long now = __atomic_load_n(&turn, __ATOMIC_ACQUIRE);
        if (now >= rounds)
            return;
        if (now % 2 != thread - 1) {
            sched_yield();
            continue;
        }
        for (int i = 0; i < 100; i++)
            once(thread);
        if (next() % 50 == 0)
            forget(thread);
        __atomic_store_n(&turn, now + 1, __ATOMIC_RELEASE);
    }
}

static void *other(void *unused)
{
    play(2);
    while (!done)
        usleep(1000);
    return unused;
}

/* The numbers of the writers of each byte, and those of the threads, in hexadecimal digits. */
static void print(const unsigned char *numbers)
{
    for (int at = 0; at < SIZE; at++)
        printf("%02x", numbers[at]);
    putchar('\n');
}

int main(int argc, char **argv)
{
    rounds = argc > 1 ? atol(argv[1]) / 100 : 1000;
    state = 88172645463325252ull + (argc > 2 ? atol(argv[2]) : 0) * 0x9e3779b97f4a7c15ull;
    zero = open("/dev/zero", O_RDONLY);
    memory[0] = malloc(SIZE), memory[1] = bytes;
    memory[2] = mmap(0, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int of = 0; of < 3; of++) {
        writer[of] = calloc(1, SIZE), by[of] = calloc(1, SIZE);
        memset(memory[of], 1, SIZE);
        memset(writer[of], 255, SIZE), memset(by[of], 1, SIZE);
    }
    memset(source, 1, sizeof source);
    pthread_t thread;
    pthread_create(&thread, 0, other, 0);
    play(1);
    while (!tids[2])
        usleep(1000);
    for (int of = 0; of < 3; of++)
        print(writer[of]), print(by[of]);
    printf("%d %d\n", tids[1], tids[2]);
    fflush(stdout);
    while (!done)
        pause();
    return pthread_join(thread, 0);
}
