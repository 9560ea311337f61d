/* String instructions whose source and destination overlap, up and down, as memmove is made of.
 *
 *   string_overlaps model SEED N    N random ones, on `area`, and the numbers that a watch of `area`, and one of
 *                                   `area[3000..5000]`, should count (hits, silent stores): by a model, an element at a
 *                                   time
 *   string_overlaps shift SIZE BY   moves SIZE bytes of the heap by BY bytes: towards lower addresses, up; and back, down
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZE 12288
#define LOW 3000
#define HIGH 5000
_Alignas(4096) unsigned char area[SIZE];
static unsigned char shadow[SIZE];
static uint64_t state;

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

static uint64_t random_below(uint64_t n)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state % n;
}

static uint64_t fill;
#define BOTH(name) \
	static void name##_up(void *to, const void *what, unsigned long n) \
	{ \
		__asm__ volatile("rep " #name : "+D"(to), "+S"(what), "+c"(n) : "a"(fill) : "memory"); \
	} \
	static void name##_down(void *to, const void *what, unsigned long n) \
	{ \
		__asm__ volatile("std; rep " #name "; cld" : "+D"(to), "+S"(what), "+c"(n) : "a"(fill) : "memory"); \
	}
BOTH(movsb) BOTH(movsw) BOTH(movsl) BOTH(movsq)
BOTH(stosb) BOTH(stosw) BOTH(stosl) BOTH(stosq)

static void (*const made[2][2][4])(void *, const void *, unsigned long) = {
	{{movsb_up, movsw_up, movsl_up, movsq_up}, {movsb_down, movsw_down, movsl_down, movsq_down}},
	{{stosb_up, stosw_up, stosl_up, stosq_up}, {stosb_down, stosw_down, stosl_down, stosq_down}},
};

struct counts {
	unsigned long hits, silent;
};

static int overlaps(unsigned long at, unsigned size, unsigned long low, unsigned long high)
{
	return at < high && at + size > low;
}

static void count(struct counts *c, unsigned long to, unsigned size, unsigned long low, unsigned long high,
		  const unsigned char *value)
{
	/* A store that overlaps the watch is silent if it leaves the watched bytes as they were. */
	unsigned long first = to > low ? to : low, end = to + size < high ? to + size : high;

	if (!overlaps(to, size, low, high))
		return;
	c->hits++;
	c->silent += memcmp(shadow + first, value + (first - to), end - first) == 0;
}

static int model(uint64_t seed, unsigned long n)
{
	struct counts all = {0}, part = {0};
	unsigned long sum = 0;

	state = seed * 0x9e3779b97f4a7c15 + 1;
	for (unsigned i = 0; i < SIZE; i++)
		area[i] = shadow[i] = random_below(256);
	ready();
	while (n--) {
		int stores = random_below(4) == 0, down = random_below(2);
		unsigned width = random_below(4), size = 1 << width;
		long step = down ? -(long)size : (long)size;
		unsigned long length = 1 + random_below(random_below(3) ? 300 : 5000);
		unsigned long apart = random_below(3) ? random_below(40) : random_below(length + 2);
		unsigned long from = random_below(SIZE - length - apart - 8), to = from + apart, elements = length / size;

		fill = random_below(3) ? state : 0;
		if (random_below(2)) {
			unsigned long other = from;
			from = to;
			to = other;
		}
		if (down && elements) {
			from += (elements - 1) * size;
			to += (elements - 1) * size;
		}
		made[stores][down][width](area + to, area + from, elements);
		while (elements--) {
			unsigned char value[8];

			memcpy(value, stores ? (const void *)&fill : shadow + from, size);
			count(&all, to, size, 0, SIZE, value);
			count(&part, to, size, LOW, HIGH, value);
			memcpy(shadow + to, value, size);
			from += step;
			to += step;
		}
		if (memcmp(area, shadow, SIZE)) {
			puts("string_overlaps: differs");
			return 1;
		}
	}
	for (unsigned i = 0; i < SIZE; i++)
		sum = sum * 31 + area[i];
	printf("string_overlaps: %lx; area %lu %lu, part %lu %lu\n", sum, all.hits, all.silent, part.hits, part.silent);
	return 0;
}

static int shift(unsigned long size, unsigned long by)
{
	unsigned char *block = malloc(size + by);
	unsigned long sum = 0;

	fill = 1;
	stosb_up(block, NULL, size + by);
	for (unsigned long i = 0; i < size + by; i += size / 8)
		block[i] = (unsigned char)(i / 251);
	movsb_up(block, block + by, size);
	movsb_down(block + by + size - 1, block + size - 1, size);
	movsb_up(block + by, block, size); /* repeats the first BY bytes */
	for (unsigned long i = 0; i < size + by; i++)
		sum = sum * 31 + block[i];
	printf("string_overlaps: %lx\n", sum);
	free(block);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 4 && !strcmp(argv[1], "model"))
		return model(strtoul(argv[2], NULL, 0), strtoul(argv[3], NULL, 0));
	if (argc == 4 && !strcmp(argv[1], "shift"))
		return shift(strtoul(argv[2], NULL, 0), strtoul(argv[3], NULL, 0));
	return 2;
}
