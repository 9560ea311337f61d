// A list and a vector that grow, and stores to their elements. `growing_lists ROUNDS` adds elements one by one.
// `growing_lists 0 NODES` has the whole list at once, and stores to its first and its last node.
#include <cstdlib>
#include <vector>

struct node {
    struct node *next;
    int id, refs;
};
struct node *chain;
std::vector<long> numbers;

__attribute__((noinline)) static void round(int n) {
    struct node *fresh = (struct node *)calloc(1, sizeof *fresh), *last = fresh;
    fresh->refs = 1;
    fresh->next = chain;
    chain = fresh;
    while (last->next)
        last = last->next;
    last->refs = 100 + n;
    numbers.push_back(n);
    numbers.front() = 200 + n;
}

static void at_once(int nodes) {
    struct node *all = (struct node *)calloc(nodes, sizeof *all);
    for (int n = 0; n + 1 < nodes; n++)
        all[n].next = &all[n + 1];
    chain = all;
    all[0].refs = 1;
    all[nodes - 1].refs = 2;
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 1;
    for (int n = 0; n < rounds; n++)
        round(n);
    if (argc > 2)
        at_once(atoi(argv[2]));
    return 0;
}
