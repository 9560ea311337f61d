// Changes maps, hash tables, deques and variants at random, and records each store to their elements, as mutations.cc does:
// trees MUTATIONS SEED FILE. FILE gets a line `watch number address length value` for each store that a watch should see.
// The watches are 0 tree[*].second.value, 1 table[*].second, 2 queue[*], 3 either[1].value, 4 maybe[*].second,
// 5 several[*].second, 6 queue[2]. Numbers are those in the order of the container.
// trees beside STORES tree|table|queue: one thread stores to an element that stays, another one changes the container around it.
#include "noted.h"
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <variant>
#include <vector>

struct Item {
    long value, other;
};

enum { MOST = 60, JUNK = 32 };
std::map<int, Item> tree;
std::unordered_map<int, long> table;
std::deque<long> queue;
std::variant<long, Item, std::string> either;
std::unique_ptr<std::map<int, long>> maybe;
std::multimap<int, long> several;

static std::map<int, Item> other_tree;
static std::unordered_map<int, long> other_table;
static std::deque<long> other_queue;
static void *junk[JUNK];

static void expect(const void *addr, int len, uint64_t value) {
    auto look = [&](int watch, unsigned number, const void *place, size_t size) {
        ::look(watch, number, place, size, addr, len, value);
    };
    unsigned n = 0;
    for (auto &one : tree)
        look(0, n++, &one.second.value, sizeof one.second.value);
    n = 0;
    for (auto &one : table)
        look(1, n++, &one.second, sizeof one.second);
    n = 0;
    for (auto &one : queue)
        look(2, n++, &one, sizeof one);
    if (auto *item = std::get_if<1>(&either))
        look(3, 0, &item->value, sizeof item->value);
    n = 0;
    if (maybe)
        for (auto &one : *maybe)
            look(4, n++, &one.second, sizeof one.second);
    n = 0;
    for (auto &one : several)
        look(5, n++, &one.second, sizeof one.second);
    if (queue.size() > 2)
        look(6, 0, &queue[2], sizeof queue[2]);
}

__attribute__((noinline)) static void store(long *to, uint64_t value) {
    expect(to, sizeof *to, value);
    *(volatile long *)to = (long)value;
}

// Allocates freed memory again at once.
static void reuse() {
    unsigned n = any(JUNK);
    free(junk[n]);
    size_t size = 16 + any(40) * 16;
    junk[n] = malloc(size);
    for (size_t i = 0; i + 8 <= size; i += 8)
        *(volatile uint64_t *)((char *)junk[n] + i) = some() + i;
}

template <class Map> static auto one_of(Map &map) {
    auto one = map.begin();
    if (!map.empty())
        std::advance(one, any(map.size()));
    return one;
}

template <class Map, class Value> static void mutate_map(Map &map, Map &other, Value value) {
    switch (any(12)) {
    default:
        if (map.size() < MOST)
            map.emplace((int)any(200), value);
        return;
    case 5:
    case 6:
    case 7:
        if (!map.empty())
            map.erase(one_of(map));
        return;
    case 8:
        return map.swap(other);
    case 9:
        if (!map.empty())
            other.insert(map.extract(one_of(map)));
        return;
    case 10:
        return other.size() < MOST ? map.merge(other) : other.clear();
    case 11:
        if (any(3))
            return;
        if (any(2))
            return map.clear();
        map = std::move(other);
        other.clear();
    }
}

static void mutate_queue() {
    switch (any(9)) {
    case 0:
    case 1:
        for (unsigned n = any(100); n && queue.size() < 10 * MOST; n--)
            queue.push_back((long)some());
        return;
    case 2:
    case 3:
        for (unsigned n = any(100); n && queue.size() < 10 * MOST; n--)
            queue.push_front((long)some());
        return;
    case 4:
        for (unsigned n = any(100); n && !queue.empty(); n--)
            queue.pop_back();
        return;
    case 5:
        for (unsigned n = any(100); n && !queue.empty(); n--)
            queue.pop_front();
        return;
    case 6:
        return queue.swap(other_queue);
    case 7:
        return queue.resize(any(MOST));
    default:
        return any(4) ? queue.shrink_to_fit() : queue.clear();
    }
}

static void mutate() {
    switch (any(16)) {
    case 0:
    case 1:
        return mutate_map(tree, other_tree, Item{1, 2});
    case 2:
    case 3:
        if (!any(10))
            return table.rehash(any(300));
        return mutate_map(table, other_table, (long)some());
    case 4:
        return mutate_queue();
    case 5:
        switch (any(3)) {
        case 0:
            either = 5L;
            return;
        case 1:
            either.emplace<1>(Item{1, 2});
            return;
        default:
            either = std::string(any(40), 'a');
            return;
        }
    case 6:
        if (!any(8))
            return maybe.reset(any(2) ? new std::map<int, long> : nullptr);
        if (maybe && maybe->size() < MOST)
            maybe->emplace((int)any(100), 3);
        return;
    case 7:
        if (several.size() < MOST && any(3))
            several.emplace((int)any(5), 4);
        else if (!several.empty())
            several.erase(one_of(several));
        return;
    case 8:
        return reuse();
    case 9:
    case 10: {
        auto &map = any(3) ? tree : other_tree;
        if (!map.empty())
            return any(3) ? store(&one_of(map)->second.value, some()) : store(&one_of(map)->second.other, some());
        return;
    }
    case 11:
    case 12: {
        auto &map = any(3) ? table : other_table;
        if (!map.empty())
            return store(&one_of(map)->second, some());
        return;
    }
    case 13: {
        auto &deque = any(3) ? queue : other_queue;
        if (!deque.empty())
            return store(&deque[any(deque.size())], some());
        return;
    }
    case 14:
        if (auto *item = std::get_if<1>(&either))
            return any(3) ? store(&item->value, some()) : store(&item->other, some());
        return;
    default:
        if (maybe && !maybe->empty() && any(2))
            return store(&one_of(*maybe)->second, some());
        if (!several.empty())
            return store(&one_of(several)->second, some());
    }
}

// C++ lets one thread use an element while another changes the container, as long as the element stays.
static int beside(long stores, const char *which) {
    long *mine;
    bool of_tree = !strcmp(which, "tree"), of_table = !strcmp(which, "table");
    for (int n = 0; n < 8; n++) {
        tree[100 + n * 10], table[100 + n * 10] = 0, queue.push_back(0);
    }
    mine = of_tree ? &tree[140].value : of_table ? &table[140] : &queue[4];
    std::atomic<bool> done{false};
    std::thread other([&] {
        for (long n = 1; n <= stores; n++)
            *(volatile long *)mine = n;
        done = true;
    });
    // At least so many rounds, however fast the other one is.
    for (long n = 0; n < 300 || !done; n++) {
        int key = (int)any(300);
        key += key == 140;
        if (of_tree)
            any(2) && tree.size() < MOST ? (void)tree.emplace(key, Item{7, 7}) : (void)tree.erase(key);
        else if (of_table)
            any(20) ? any(2) && table.size() < MOST ? (void)table.emplace(key, 7) : (void)table.erase(key) : table.rehash(any(400));
        else if (queue.size() < 900)
            any(2) ? queue.push_back(7) : queue.push_front(7);
        else
            while (mine - &queue.front() != 0 && queue.size() > 8 && &queue.back() != mine)
                any(2) ? queue.pop_back() : queue.pop_front();
    }
    other.join();
    _Exit(0);
}

int main(int argc, char **argv) {
    if (argc < 4)
        return 2;
    if (!strcmp(argv[1], "beside")) {
        state = 12345;
        return beside(atol(argv[2]), argv[3]);
    }
    long left = atol(argv[1]);
    begin(argv[2], left);
    while (left-- > 0)
        mutate();
    end(argv[3]);
}
