// Pretends to be a ulpf: a process called ulpf with memory files called ulpf-shared, in which there is what a
// hostile neighbour would put there. The layout is that of ulpf-lib/src/ring.rs.
//
//     pretender BYTES KIND              random | full | moving | truncated | unsealed
//     pretender BYTES claims PID        full, as the session of that process
//     pretender BYTES sockets TEXT      as full, and a control socket that answers: endless | stars
//     pretender BYTES sockets objects   the same, an area without watches
//
// BYTES is the length of a session's area.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define SLOTS (1ul << 20)
#define AREAS (1ul << 15)
#define COUNTERS 4096ul
#define ROSTER (COUNTERS + SLOTS * 128)
#define AREA (ROSTER + SLOTS * 32)
#define HEADS (AREA + AREAS * (256 + 2 * 256 * 8 + 512 * 8))
#define RINGS (HEADS + AREAS * 64)
#define FINDINGS (RINGS + 64 * (64ul << 16) + 960 * (64ul << 11) + (AREAS - 1024) * (64ul << 8))

static unsigned long length;
static uint32_t claimed;
static uint64_t seed = 88172645463325252ul;

static uint64_t any(void) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    return seed ^= seed << 17;
}

static uint64_t tsc(void) {
    uint32_t low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
    return (uint64_t)high << 32 | low;
}

static uint32_t mark(uint64_t at) { return ((uint32_t)at + 1) * 0x9e3779b1u; }

// A record of the first ring, as its writer would write it.
static void record(char *area, uint64_t at, uint64_t time, uint32_t watch) {
    volatile uint64_t *slot = (void *)(area + RINGS + (at & 0xffff) * 64);
    slot[1] = time;
    slot[2] = any();
    slot[3] = any();
    slot[4] = watch | any() << 32;
    slot[5] = (any() & 0x00ff1fffffffffff) | 1ul << 56;
    slot[0] = mark(at) | at << 32;
}

static char *area_of(int fd) {
    if (ftruncate(fd, length)) exit(3);
    char *area = mmap(0, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (area == MAP_FAILED) exit(3);
    uint64_t *header = (void *)area;
    header[1] = tsc();
    header[3] = 1ul << 31;
    ((uint32_t *)area)[8] = claimed ? claimed : getpid();
    memcpy(area, "ulpfrin5", 8);
    return area;
}

static void fill(char *area, int random) {
    uint32_t *header = (void *)area;
    header[11] = header[12] = random ? any() : UINT32_MAX;  // rings, entries of the roster
    header[24] = UINT32_MAX;                                 // areas
    for (unsigned long n = 0; n < 60000; n++) {
        uint64_t *line = (void *)(area + ROSTER + n * 32);
        line[0] = random ? any() : 0;
        line[1] = random ? any() : UINT64_MAX;
        ((uint32_t *)line)[4] = random ? any() : 6;
        ((uint32_t *)line)[5] = random ? any() : n;
        line[3] = any();
        for (int i = 0; i < 16; i++)
            if (random) ((uint64_t *)(area + COUNTERS + n * 128))[i] = any();
    }
    for (unsigned long n = 0; n < 2000; n++) {
        uint64_t *head = (void *)(area + HEADS + n * 64);
        head[0] = random ? any() : UINT64_MAX;
        head[1] = any();
    }
    for (uint64_t *at = (void *)(area + FINDINGS); random && at < (uint64_t *)(area + length); at++) *at = any();
    for (unsigned long at = 0; random && at < 1ul << 16; at++) record(area, at, at % 3 ? any() : UINT64_MAX, any() % 60000);
}

static void *sockets(void *text) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int length = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "ulpf/%d", getpid());
    int control = socket(AF_UNIX, SOCK_STREAM, 0);
    if (bind(control, (void *)&name, offsetof(struct sockaddr_un, sun_path) + 1 + length) || listen(control, 9)) exit(3);
    static char stars[1500000], piece[1 << 16], question[4096];
    // Texts of some bytes, each of which takes hundreds as a value.
    static char objects[(16 << 20) - 100];
    for (size_t n = 0; n + 9 <= sizeof objects; n += 9) memcpy(objects + n, "{\"a\":[]},", 9);
    memset(stars, '*', sizeof stars);
    memset(piece, 'x', sizeof piece);
    for (;;) {
        int with = accept(control, 0, 0);
        if (read(with, question, sizeof question) <= 0) continue;
        if (!strcmp(text, "endless"))
            while (send(with, piece, sizeof piece, MSG_NOSIGNAL) > 0) {}
        if (!strcmp(text, "objects")) {
            int n = sizeof objects / 9 * 9;
            dprintf(with, "{\"watches\":[%.*s{}]}\n", n, objects);
        }
        dprintf(with, "{\"watches\":[{\"watch\":1,\"id\":1,\"kind\":\"w\",\"state\":\"armed\",\"spec\":\"%.*sx\"}]}\n", (int)sizeof stars, stars);
        close(with);
    }
}

int main(int argc, char **argv) {
    length = argc > 2 ? strtoul(argv[1], 0, 0) : 0;
    if (length <= FINDINGS) return 2;
    const char *kind = argv[2];
    prctl(PR_SET_NAME, "ulpf");
    signal(SIGPIPE, SIG_IGN);
    if (!strcmp(kind, "claims")) claimed = atoi(argv[3]);
    int fd = memfd_create("ulpf-shared", MFD_ALLOW_SEALING);
    char *area = area_of(fd);
    int sealed = strcmp(kind, "truncated") && strcmp(kind, "unsealed");
    if (sealed) fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    int empty = argc > 3 && !strcmp(argv[3], "objects");
    if (strcmp(kind, "truncated") && !empty) fill(area, !strcmp(kind, "random"));
    pthread_t thread;
    if (!strcmp(kind, "sockets")) pthread_create(&thread, 0, sockets, argv[3]);
    printf("ready\n");
    fflush(stdout);
    if (!strcmp(kind, "truncated"))
        for (;;) {
            if (ftruncate(fd, 0) || ftruncate(fd, length)) return 4;
            // It looks like a session for a moment. A reader that maps it now gets SIGBUS at the next turn.
            uint32_t pid = getpid();
            pwrite(fd, "ulpfrin5", 8, 0);
            pwrite(fd, &pid, 4, 32);
            usleep(200);
        }
    if (!strcmp(kind, "moving")) {
        volatile uint64_t *head = (void *)(area + HEADS);
        for (uint64_t at = 0;; at += any() % 7 ? 1 : 70000) {
            if (any() % 3) record(area, at, any() % 2 ? UINT64_MAX : tsc(), 1);
            head[0] = at + 1;
            head[1] = at + 1;
        }
    }
    for (;;) pause();
}
