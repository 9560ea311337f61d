/* Headers of the C++ library make its stores, inlined in its functions. */
#include <atomic>
#include <cstdio>
#include <vector>

std::atomic<int> hits;
std::vector<int> places(4);
int seen;

static inline void bump() { hits++; }

__attribute__((noinline)) void work(int n)
{
    bump();
    hits += n;
    places.at(2) = n + 1;
}

int main()
{
    for (int i = 0; i < 3; i++)
        work(i);
    seen = hits.load();
    std::printf("%d\n", seen);
}
