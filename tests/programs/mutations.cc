// Changes lists, vectors and strings at random, and records each store to their elements: the oracle of watches that follow
// many places. mutations MUTATIONS SEED THREADS FILE. FILE gets a line `watch number address length value` for each store
// that a watch should see. The watches are 0 numbers[*], 1 records[*].count, 2 chain->*next.refs, 3 items[*].value,
// 4 text[*], 5 owner->value, 6 stack[*], 7 table[*]->refs, 8 numbers[2].
// Freed memory is used again at once, and written to, so that a watch that stays on it reports a wrong hit.
#include "noted.h"
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <forward_list>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

struct Record {
    int id, count;
    long more;
};
struct Item {
    long value, other;
};
struct node {
    struct node *next;
    int id, refs;
    char tail[40];
};

enum { MOST = 40, JUNK = 32, ROWS = 6 };
std::vector<long> numbers;
std::vector<Record> records;
struct node *chain;
std::list<Item> items;
std::string text;
std::unique_ptr<Item> owner;
std::forward_list<long> stack;
struct node *table[ROWS];

static std::vector<long> other_numbers;
static std::list<Item> other_items;
static void *junk[JUNK];

static long left;
static std::mutex mutex;

// Records the watches that see the next store, which is to these bytes. Walks the containers as a debugger would.
static void expect(const void *addr, int len, uint64_t value) {
    auto look = [&](int watch, unsigned number, const void *place, size_t size) {
        ::look(watch, number, place, size, addr, len, value);
    };
    unsigned n = 0;
    for (auto &one : numbers)
        look(0, n++, &one, sizeof one);
    n = 0;
    for (auto &one : records)
        look(1, n++, &one.count, sizeof one.count);
    n = 0;
    for (struct node *one = chain; one; one = one->next) {
        look(2, n++, &one->refs, sizeof one->refs);
        if (one->next == chain)
            break;
    }
    n = 0;
    for (auto &one : items)
        look(3, n++, &one.value, sizeof one.value);
    n = 0;
    for (auto &one : text)
        look(4, n++, &one, sizeof one);
    if (owner)
        look(5, 0, &owner->value, sizeof owner->value);
    n = 0;
    for (auto &one : stack)
        look(6, n++, &one, sizeof one);
    for (n = 0; n < ROWS; n++)
        if (table[n])
            look(7, n, &table[n]->refs, sizeof table[n]->refs);
    if (numbers.size() > 2)
        look(8, 0, &numbers[2], sizeof numbers[2]);
}

template <class T> __attribute__((noinline)) static void store(T *to, uint64_t value) {
    T typed = (T)value;
    uint64_t bits = 0;
    memcpy(&bits, &typed, sizeof typed);
    expect(to, sizeof *to, bits);
    *(volatile T *)to = typed;
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

static struct node **link_at(unsigned n) {
    struct node **at = &chain;
    while (n-- && *at && (*at)->next != chain)
        at = &(*at)->next;
    return at;
}

static unsigned length() {
    unsigned n = 0;
    for (struct node *one = chain; one; one = one->next) {
        n++;
        if (one->next == chain)
            break;
    }
    return n;
}

static bool ring() {
    for (struct node *one = chain; one; one = one->next)
        if (one->next == chain)
            return true;
    return false;
}

// Nothing of the table leads to what is about to be freed.
static void leave(const struct node *old) {
    for (auto &row : table)
        if (row == old)
            row = NULL;
}

static void mutate_chain() {
    unsigned n = length();
    if (ring()) {
        // It is cut before anything else is done with it.
        struct node *last = chain;
        while (last->next != chain)
            last = last->next;
        last->next = NULL;
        return;
    }
    switch (any(6)) {
    case 0:
    case 1: {
        if (n >= MOST)
            return;
        struct node *fresh = (struct node *)(any(2) ? calloc(1, sizeof *fresh) : malloc(sizeof *fresh));
        struct node **at = link_at(any(n + 1));
        fresh->id = (int)n;
        fresh->refs = 1;
        fresh->next = *at;
        *at = fresh;
        return;
    }
    case 2:
    case 3: {
        if (!n)
            return;
        struct node **at = link_at(any(n)), *old = *at;
        leave(old);
        if (any(2)) {
            *at = old->next;
            memset(old, 0x5a, sizeof *old);
            free(old);
        } else {
            // Freed first, and unlinked afterwards.
            struct node *next = old->next;
            free(old);
            *at = next;
        }
        return;
    }
    case 4: {
        struct node *last = chain;
        while (last && last->next)
            last = last->next;
        if (last && n > 1)
            last->next = chain;
        return;
    }
    default:
        if (any(8))
            return;
        for (struct node *one = chain, *next; one; one = next) {
            next = one->next;
            leave(one);
            free(one);
        }
        chain = NULL;
    }
}

static void mutate_items() {
    auto at = [](std::list<Item> &list) {
        auto one = list.begin();
        std::advance(one, any(list.size() + 1));
        return one;
    };
    switch (any(8)) {
    case 0:
    case 1:
    case 2:
        if (items.size() < MOST)
            items.insert(at(items), Item{(long)some(), 1});
        return;
    case 3:
        if (auto one = at(items); one != items.end())
            items.erase(one);
        return;
    case 4:
        return items.reverse();
    case 5:
        return items.splice(at(items), other_items);
    case 6:
        return other_items.splice(other_items.begin(), items, items.begin(), at(items));
    default:
        return any(4) ? items.swap(other_items) : items.clear();
    }
}

static void mutate_numbers() {
    switch (any(9)) {
    case 0:
    case 1:
    case 2:
        if (numbers.size() < MOST)
            numbers.push_back((long)some());
        return;
    case 3:
        if (!numbers.empty())
            numbers.pop_back();
        return;
    case 4:
        return numbers.shrink_to_fit();
    case 5:
        return numbers.reserve(any(100));
    case 6:
        return numbers.resize(any(MOST));
    case 7:
        return numbers.swap(other_numbers);
    default:
        if (any(2))
            return numbers.clear();
        numbers = std::move(other_numbers);
        other_numbers.clear();
    }
}

static void mutate_text() {
    switch (any(6)) {
    case 0:
    case 1:
        if (text.size() < 3 * MOST)
            text.append(any(20), 'a');
        return;
    case 2:
        if (!text.empty())
            text.pop_back();
        return;
    case 3:
        return text.shrink_to_fit();
    case 4:
        return text.reserve(any(300));
    default:
        return text.resize(any(MOST));
    }
}

static void mutate() {
    switch (any(20)) {
    case 0:
    case 1:
        return mutate_numbers();
    case 2:
        switch (any(4)) {
        case 0:
        case 1:
            if (records.size() < MOST)
                records.push_back(Record{1, 2, 3});
            return;
        case 2:
            if (!records.empty())
                records.pop_back();
            return;
        default:
            return any(2) ? records.shrink_to_fit() : records.reserve(any(60));
        }
    case 3:
    case 4:
        return mutate_chain();
    case 5:
    case 6:
        return mutate_items();
    case 7:
        return mutate_text();
    case 8:
        if (any(3))
            return owner.reset(new Item{1, 2});
        return owner.reset();
    case 9:
        if (any(2) && std::distance(stack.begin(), stack.end()) < MOST)
            stack.push_front((long)some());
        else if (!stack.empty())
            stack.pop_front();
        return;
    case 10: {
        unsigned n = length();
        table[any(ROWS)] = n && any(4) ? *link_at(any(n)) : NULL;
        return;
    }
    case 11:
        return reuse();
    case 12:
        if (!records.empty()) {
            Record &one = records[any(records.size())];
            return any(2) ? store(&one.count, some()) : store(&one.more, some());
        }
        return;
    case 13:
        if (unsigned n = length())
            return store(&(*link_at(any(n)))->refs, some());
        return;
    case 14: {
        auto &list = any(3) ? items : other_items;
        if (!list.empty()) {
            auto one = list.begin();
            std::advance(one, any(list.size()));
            return any(3) ? store(&one->value, some()) : store(&one->other, some());
        }
        return;
    }
    case 15:
        if (!text.empty())
            return store(&text[any(text.size())], some());
        return;
    case 16:
        if (owner)
            return any(2) ? store(&owner->value, some()) : store(&owner->other, some());
        return;
    case 17:
        if (!stack.empty())
            return store(&stack.front(), some());
        return;
    default: {
        auto &vector = any(3) ? numbers : other_numbers;
        if (!vector.empty())
            return store(&vector[any(vector.size())], some());
    }
    }
}

static void work() {
    for (;;) {
        std::lock_guard<std::mutex> hold(mutex);
        if (left-- <= 0)
            return;
        mutate();
    }
}

int main(int argc, char **argv) {
    if (argc < 5)
        return 2;
    left = atol(argv[1]);
    begin(argv[2], left);
    int threads = atoi(argv[3]);
    if (threads > 1) {
        std::vector<std::thread> all;
        for (int i = 0; i < threads; i++)
            all.emplace_back(work);
        for (auto &one : all)
            one.join();
    } else {
        work();
    }
    end(argv[4]);
}
