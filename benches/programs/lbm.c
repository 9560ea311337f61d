/* A lattice Boltzmann fluid (D3Q19, BGK, periodic), two lattices on the heap, each step from one to the
 * other: the memory pattern of SPEC's lbm. lbm SIDE STEPS */
#include <stdlib.h>

#include "measure.h"

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
	const double omega = 1.2;

	for (int z = 0; z < n; z++)
		for (int y = 0; y < n; y++)
			for (int x = 0; x < n; x++) {
				const double *f = from + ((long)(z * n + y) * n + x) * Q;
				double rho = 0, ux = 0, uy = 0, uz = 0, u2;

				for (int q = 0; q < Q; q++) {
					rho += f[q];
					ux += f[q] * cx[q];
					uy += f[q] * cy[q];
					uz += f[q] * cz[q];
				}
				ux /= rho;
				uy /= rho;
				uz /= rho;
				u2 = 1.5 * (ux * ux + uy * uy + uz * uz);
				for (int q = 0; q < Q; q++) {
					double cu = 3 * (cx[q] * ux + cy[q] * uy + cz[q] * uz);
					double rest = weight(q) * rho * (1 + cu + cu * cu / 2 - u2);
					int x2 = (x + cx[q] + n) % n, y2 = (y + cy[q] + n) % n, z2 = (z + cz[q] + n) % n;

					to[((long)(z2 * n + y2) * n + x2) * Q + q] = f[q] + omega * (rest - f[q]);
				}
			}
}

int main(int argc, char **argv)
{
	int n = argc > 1 ? atoi(argv[1]) : 24, steps = argc > 2 ? atoi(argv[2]) : 10;
	long cells = (long)n * n * n;
	double *a, *b, sum = 0;
	struct moment start;

	ready();
	a = malloc(cells * Q * sizeof *a);
	b = malloc(cells * Q * sizeof *b);
	for (long i = 0; i < cells * Q; i++)
		a[i] = b[i] = weight(i % Q) * (1 + 0.01 * (i / Q % 7));
	start = moment();
	for (int i = 0; i < steps; i++) {
		double *other = a;

		step(a, b, n);
		a = b;
		b = other;
	}
	report(start, 1);
	for (long i = 0; i < cells * Q; i++)
		sum += a[i];
	printf("mass %.6f\n", sum / cells);
	free(a);
	free(b);
	return 0;
}
