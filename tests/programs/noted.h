// For programs that change what watches follow, at random, and note what each watch should see: mutations.cc, trees.cc.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>

struct Noted {
    int watch;
    unsigned number;
    uint64_t addr;
    int len;
    uint64_t value;
};
// In memory that malloc has no part in.
static Noted *noted;
static size_t noted_count, noted_room;
static uint64_t state;

static unsigned any(unsigned n) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (state >> 11) % n;
}
static uint64_t some() { return state * 0x9e3779b97f4a7c15u; }

static void begin(const char *seed, long mutations) {
    state = strtoull(seed, NULL, 0) * 2 + 1;
    noted_room = (size_t)mutations * 4 + 1024;
    noted = (Noted *)malloc(noted_room * sizeof *noted);
}

// A store to these bytes is about to be made: does the watch on this place see it?
static void look(int watch, unsigned number, const void *place, size_t size, const void *addr, int len, uint64_t value) {
    const char *at = (const char *)addr, *start = (const char *)place;
    if (at < start || at + len > start + size)
        return;
    if (noted_count == noted_room)
        abort();
    noted[noted_count++] = Noted{watch, number, (uint64_t)addr, len, value};
}

// `watch number address length value`, a line for each store. Destructors would store to watched memory, so none runs.
[[noreturn]] static void end(const char *file) {
    FILE *to = fopen(file, "w");
    for (size_t i = 0; to && i < noted_count; i++)
        fprintf(to, "%d %u %#lx %d %#lx\n", noted[i].watch, noted[i].number, noted[i].addr, noted[i].len, noted[i].value);
    _Exit(to && !fclose(to) ? 0 : 1);
}
