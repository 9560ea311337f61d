// Functions that are left by exceptions, of several types and names; each notes what it stores to `mine`.
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

static std::string noted;

template <class T> static void note(const volatile T &value) { noted += std::to_string(T(value)) + "\n"; }

__attribute__((noinline)) static void use_the_stack() {
    volatile char all[16384];
    for (size_t i = 0; i < sizeof all; i++)
        all[i] = char(i);
}

namespace store {
struct Guard {
    ~Guard() { use_the_stack(); }
};

class Pool {
public:
    __attribute__((noinline)) int take(int left) {
        volatile int mine = left;
        note(mine);
        Guard guard;
        if (left == 0)
            throw std::runtime_error("nothing is left");
        mine = take(left - 1);
        note(mine);
        return mine;
    }
};

// A callee throws; this frame catches the exception and stays.
__attribute__((noinline)) int careful(int left) {
    volatile int mine = 10 + left;
    note(mine);
    try {
        Pool().take(left);
    } catch (const std::exception &) {
        use_the_stack();
        mine = 20 + left;
        note(mine);
    }
    return mine;
}
} // namespace store

template <class T> __attribute__((noinline)) static T twice(T value) {
    volatile T mine = value;
    note(mine);
    mine = mine + value;
    note(mine);
    return mine;
}

__attribute__((noinline)) static int refers(volatile int &mine) {
    mine = mine + 1;
    note(mine);
    return mine;
}

__attribute__((noinline)) static long grows(int count) {
    std::vector<long> mine;
    for (int i = 0; i < count; i++)
        mine.push_back(i);
    static_cast<volatile long &>(mine[1]) = 70;
    note(mine[1]);
    static_cast<volatile long &>(mine[count - 1]) = 80;
    note(mine[count - 1]);
    return mine[1];
}

int main(int, char **arguments) {
    const std::string what = arguments[1];
    if (what == "exceptions")
        for (int left = 0; left < 3; left++) {
            try {
                store::Pool().take(left);
            } catch (const std::exception &) {
            }
            use_the_stack();
        }
    else if (what == "careful")
        for (int left = 0; left < 3; left++)
            store::careful(left);
    else if (what == "templates") {
        twice(3);
        twice(2.5);
    } else if (what == "references") {
        volatile int one = 1, two = 2;
        refers(one);
        one = 40;
        refers(two);
        one = 50;
    } else if (what == "vectors") {
        grows(3);
        use_the_stack();
        grows(9);
    }
    std::fputs(noted.c_str(), stdout);
}
