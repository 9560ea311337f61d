// SPDX-License-Identifier: GPL-2.0-or-later
// The loop of the thesis's Tables 4.3 to 4.6: each byte of a block is stored to, in order.
//
//   sweep HANDLER PAGES LAYOUT WATCHES SPANNED
//
// HANDLER: none, empty or lookup. LAYOUT: sparse (random bytes on SPANNED pages), dense (256 bytes
// apart), first (the first byte of each page), all (one range). Prints what `ulpf-sim-tables` reads.
#include "ulpf.h"

_Alignas(2 << 20) static volatile unsigned char block[256 * PAGE];

// The same bytes in every run (xorshift64).
static uint64_t random_number(void)
{
	static uint64_t x = 0x9e3779b97f4a7c15;

	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	return x;
}

static void sparse(unsigned watches, unsigned spanned, unsigned pages)
{
	static bool page_taken[256], byte_taken[256 * PAGE];
	unsigned chosen[256], n = 0;

	while (n < spanned) {
		unsigned page = random_number() % pages;

		if (!page_taken[page]) {
			page_taken[page] = true;
			chosen[n++] = page;
		}
	}
	// One on each, the rest anywhere on them; no two on the same byte.
	for (unsigned i = 0; i < watches;) {
		uint64_t at = chosen[i < spanned ? i : random_number() % spanned] * PAGE + random_number() % PAGE;

		if (!byte_taken[at]) {
			byte_taken[at] = true;
			set_permissions((uintptr_t)block + at, 1);
			i++;
		}
	}
}

__attribute__((noinline)) static void fill(volatile unsigned char *from, volatile unsigned char *to)
{
	for (; from < to; from++)
		*from = 1;
}

int main(int argc, char **argv)
{
	const char *handler = argv[1], *layout = argv[3];
	unsigned pages = atoi(argv[2]), watches = atoi(argv[4]), spanned = atoi(argv[5]);
	uint64_t start, end;

	memset((void *)block, 0, sizeof block);
	register_user_handler(handler);
	if (handler[0] == 'n')
		;
	else if (layout[0] == 's')
		sparse(watches, spanned, pages);
	else if (layout[0] == 'd')
		for (unsigned i = 0; i < watches; i++)
			set_permissions((uintptr_t)block + i * 256, 1);
	else if (layout[0] == 'f')
		for (unsigned i = 0; i < watches; i++)
			set_permissions((uintptr_t)block + i * PAGE, 1);
	else
		set_permissions((uintptr_t)block, pages * PAGE);
	start = cycles();
	fill(block, block + pages * PAGE);
	end = cycles();
	printf("cycles %lu hits %lu false_positives %lu nodes %zu\n", end - start, watchpoint_hit, false_positive,
	       watchlist_nodes());
	return 0;
}
