// A hash map of Abseil, whose values are stored to by store(), also after the map has grown. Prints each store.
#include <absl/container/flat_hash_map.h>

#include <cstdio>

struct point {
	int x, y;
};

absl::flat_hash_map<int, point> places;

__attribute__((noinline)) static void store(point *to, int y) { to->y = y; }

int main() {
	int next = 100;
	for (int size : {1, 5, 40, 300}) {
		for (int n = static_cast<int>(places.size()); n < size; n++)
			places[n * 7] = {n, 0};
		for (int n = 0; n < size; n += 1 + size / 8) {
			store(&places[n * 7], ++next);
			std::printf("%d\n", next);
		}
		places.erase(0);
		places[0] = {0, 0};
	}
}
