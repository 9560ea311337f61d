// SPDX-License-Identifier: GPL-2.0-or-later
// Programs that work on the heap, all of it watched (the thesis's Table 4.7 has SPEC's libquantum and
// lbm; these are ours, with the same patterns of memory):
//
//     heap HANDLER quantum BITS    a register of basis states and amplitudes, gates over all of them
//     heap HANDLER lists ROUNDS    small blocks that come and go (without watches, which are never removed)
//     heap HANDLER lbm SIDE        a lattice Boltzmann fluid (D3Q19), from one lattice to the other
#include "ulpf.h"

static bool watched;

static uintptr_t line_behind(void *block, size_t size)
{
	return ((uintptr_t)block + size + 63) & -64ul;
}

static void *allocate(size_t size)
{
	void *block = calloc(1, size + 128);

	if (watched)
		set_permissions((uintptr_t)block, size);
	// The line behind it, for Sentry's model.
	syscall(WATCH_LINE, line_behind(block, size));
	return block;
}

static void release(void *block, size_t size)
{
	syscall(OPEN_LINE, line_behind(block, size));
	free(block);
}

// Blocks of all sizes come and go.
static double lists(int rounds)
{
	static struct { unsigned char *block; size_t size; } slots[256];
	unsigned seed = 1;
	double sum = 0;

	while (rounds--) {
		unsigned n = (seed = seed * 1103515245 + 12345) >> 16 & 255;

		if (slots[n].block) {
			for (size_t i = 0; i < slots[n].size; i++)
				sum += slots[n].block[i];
			release(slots[n].block, slots[n].size);
		}
		slots[n].size = 16 + (seed >> 8 & 255);
		slots[n].block = allocate(slots[n].size);
		memset(slots[n].block, n, slots[n].size);
	}
	return sum;
}

struct state { double re, im; uint64_t basis; };

static void controlled_not(struct state *reg, size_t n, int control, int target)
{
	for (size_t i = 0; i < n; i++)
		if (reg[i].basis >> control & 1)
			reg[i].basis ^= 1ull << target;
}

static void phase(struct state *reg, size_t n, int bit)
{
	for (size_t i = 0; i < n; i++)
		if (reg[i].basis >> bit & 1) {
			double re = reg[i].re;

			reg[i].re = -reg[i].im;
			reg[i].im = re;
		}
}

// Each state becomes two, in a new register; the old one is given back.
static struct state *hadamard(struct state *reg, size_t *n, int bit)
{
	struct state *twice = allocate(2 * *n * sizeof *twice);

	for (size_t i = 0; i < *n; i++) {
		double re = reg[i].re * 0.70710678, im = reg[i].im * 0.70710678;
		double sign = reg[i].basis >> bit & 1 ? -1 : 1;

		twice[2 * i] = (struct state){ re, im, reg[i].basis & ~(1ull << bit) };
		twice[2 * i + 1] = (struct state){ re * sign, im * sign, reg[i].basis | 1ull << bit };
	}
	*n *= 2;
	return twice;
}

static double quantum(int bits)
{
	size_t n = 1;
	struct state *reg = allocate(sizeof *reg);
	double norm = 0;

	reg[0].re = 1;
	for (int bit = 0; bit < bits; bit++)
		reg = hadamard(reg, &n, bit);
	for (int round = 0; round < 4; round++)
		for (int bit = 0; bit + 1 < bits; bit++) {
			controlled_not(reg, n, bit, bit + 1);
			phase(reg, n, bit);
		}
	for (size_t i = 0; i < n; i++)
		norm += reg[i].re * reg[i].re + reg[i].im * reg[i].im;
	return norm;
}

enum { Q = 19 };
static const int cx[Q] = {0, 1, -1, 0, 0, 0, 0, 1, -1, 1, -1, 1, -1, 1, -1, 0, 0, 0, 0};
static const int cy[Q] = {0, 0, 0, 1, -1, 0, 0, 1, -1, -1, 1, 0, 0, 0, 0, 1, -1, 1, -1};
static const int cz[Q] = {0, 0, 0, 0, 0, 1, -1, 0, 0, 0, 0, 1, -1, -1, 1, 1, -1, -1, 1};

static double weight(int q)
{
	return q == 0 ? 1. / 3 : q < 7 ? 1. / 18 : 1. / 36;
}

static void step(const double *from, double *to, int n)
{
	for (int z = 0; z < n; z++)
		for (int y = 0; y < n; y++)
			for (int x = 0; x < n; x++) {
				const double *f = from + ((long)(z * n + y) * n + x) * Q;
				double rho = 0, u[3] = {0}, u2;

				for (int q = 0; q < Q; q++) {
					rho += f[q];
					u[0] += f[q] * cx[q];
					u[1] += f[q] * cy[q];
					u[2] += f[q] * cz[q];
				}
				for (int d = 0; d < 3; d++)
					u[d] /= rho;
				u2 = 1.5 * (u[0] * u[0] + u[1] * u[1] + u[2] * u[2]);
				for (int q = 0; q < Q; q++) {
					double cu = 3 * (cx[q] * u[0] + cy[q] * u[1] + cz[q] * u[2]);
					double rest = weight(q) * rho * (1 + cu + cu * cu / 2 - u2);
					int x2 = (x + cx[q] + n) % n, y2 = (y + cy[q] + n) % n, z2 = (z + cz[q] + n) % n;

					to[((long)(z2 * n + y2) * n + x2) * Q + q] = f[q] + 1.2 * (rest - f[q]);
				}
			}
}

static double lbm(int n)
{
	long size = (long)n * n * n * Q;
	double *a = allocate(size * sizeof *a), *b = allocate(size * sizeof *b), sum = 0;

	for (long i = 0; i < size; i++)
		a[i] = b[i] = weight(i % Q) * (1 + 0.01 * (i / Q % 7));
	for (int round = 0; round < 3; round++) {
		double *other = a;

		step(a, b, n);
		a = b;
		b = other;
	}
	for (long i = 0; i < size; i++)
		sum += a[i];
	return sum;
}

int main(int argc, char **argv)
{
	uint64_t start, end;
	double result;

	register_user_handler(argv[1]);
	watched = argv[1][0] != 'n';
	start = cycles();
	result = argv[2][0] == 'q' ? quantum(atoi(argv[3])) : argv[2][1] == 'i' ? lists(atoi(argv[3])) : lbm(atoi(argv[3]));
	end = cycles();
	printf("cycles %lu hits %lu false_positives %lu nodes %zu result %.6f\n", end - start, watchpoint_hit,
	       false_positive, watchlist_nodes(), result);
	return 0;
}
