// SPDX-License-Identifier: MIT OR Apache-2.0
// What compare.py watches: memory that only the program's own instructions touch, so that it sees the same
// accesses on every machine.
//
//     patterns sweep     each byte of 64 pages is stored to, in order (thesis, Tables 4.3 to 4.5)
//     patterns sort      a heap sort of 8,192 numbers
//     patterns tree      4,096 numbers into a binary tree, and each looked for
//     patterns table     4,096 numbers into a hash table with open addresses
#include <stdint.h>
#include <stdio.h>

#define N 8192
_Alignas(4096) volatile unsigned char block[64 * 4096];
_Alignas(4096) volatile uint32_t numbers[N];
_Alignas(4096) volatile struct { uint32_t key, left, right, count; } nodes[N];
_Alignas(4096) volatile uint64_t slots[N];
_Alignas(4096) char end[4096];

static uint32_t state = 1;

static uint32_t next(void)
{
	return state = state * 1103515245 + 12345;
}

static void sink(uint32_t from, uint32_t to)
{
	for (uint32_t child; (child = 2 * from + 1) < to; from = child) {
		if (child + 1 < to && numbers[child + 1] > numbers[child])
			child++;
		if (numbers[from] >= numbers[child])
			return;
		uint32_t other = numbers[from];
		numbers[from] = numbers[child];
		numbers[child] = other;
	}
}

static void sort(void)
{
	for (int i = 0; i < N; i++)
		numbers[i] = next();
	for (int i = N / 2; i-- > 0;)
		sink(i, N);
	for (int i = N - 1; i > 0; i--) {
		uint32_t most = numbers[0];
		numbers[0] = numbers[i];
		numbers[i] = most;
		sink(0, i);
	}
}

static void tree(void)
{
	uint32_t used = 1;

	nodes[0].key = 1u << 31;
	for (int i = 0; i < N - 1; i++) {
		uint32_t key = next(), at = 0;
		for (;;) {
			nodes[at].count++;
			uint32_t then = key < nodes[at].key ? nodes[at].left : nodes[at].right;
			if (!then)
				break;
			at = then;
		}
		nodes[used].key = key;
		if (key < nodes[at].key)
			nodes[at].left = used++;
		else
			nodes[at].right = used++;
	}
}

static void table(void)
{
	for (int i = 0; i < N / 2; i++) {
		uint64_t key = next() | 1ull << 40;
		uint32_t at = key * 2654435761u >> 7 & (N - 1);
		while (slots[at] && slots[at] != key)
			at = (at + 1) & (N - 1);
		slots[at] = key;
	}
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";

	if (what[0] == 's' && what[1] == 'w')
		for (unsigned i = 0; i < sizeof block; i++)
			block[i] = 1;
	else if (what[0] == 's')
		sort();
	else if (what[0] == 't' && what[1] == 'r')
		tree();
	else
		table();
	printf("patterns: done\n");
	return 0;
}
