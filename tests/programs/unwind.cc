// Exceptions thrown through frames on watched pages: destructors, rethrows, catches at every depth, in
// two threads.
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <thread>

char *area;      // 16 KiB of the stack, the frames of dive() among them
long *deep_slot; // a local of main's

extern "C" __attribute__((noinline)) void ready() { asm volatile(""); }

struct Guard {
    volatile long &sum;
    volatile long mine;
    Guard(volatile long &s, long m) : sum(s), mine(m) {}
    ~Guard() { sum = sum + mine; }
};

__attribute__((noinline)) static long dive(volatile long &sum, int depth, int bottom) {
    Guard guard(sum, depth);
    std::string text(20 + depth % 7, 'a' + depth % 26);
    if (depth == bottom)
        throw std::runtime_error(text);
    try {
        return dive(sum, depth + 1, bottom) + 1;
    } catch (const std::runtime_error &e) {
        if (depth % 5 == 0)
            throw std::runtime_error(text + e.what()[0]);
        throw;
    }
}

static long rounds(volatile long &sum) {
    long caught = 0;
    for (int i = 1; i <= 8; i++) {
        try {
            caught += dive(sum, 0, i);
        } catch (const std::exception &e) {
            caught += std::string(e.what()).size();
        }
    }
    return caught;
}

int main() {
    volatile long sum = 0, other = 0;
    long caught, there = 0;

    rounds(sum);
    deep_slot = const_cast<long *>(&sum);
    area = reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(&sum) & -4096l) + 4096 - 16384);
    ready();
    std::thread second([&] { there = rounds(other); });
    caught = rounds(sum);
    second.join();
    std::printf("unwind: sum %ld %ld, caught %ld %ld\n", sum, other, caught, there);
}
