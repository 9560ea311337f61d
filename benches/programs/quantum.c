/* Shor's algorithm on Debian's libquantum, which keeps its register on the heap (the thesis's table
 * 4.7 watches SPEC's version of it): quantum N X */
#include <quantum.h>
#include <stdlib.h>

#include "measure.h"

int main(int argc, char **argv)
{
	int n = argc > 1 ? atoi(argv[1]) : 15, x = argc > 2 ? atoi(argv[2]) : 7;
	int width = quantum_getwidth(n * n), bits = quantum_getwidth(n), scratch = 3 * bits + 2;
	unsigned long long measured;
	struct moment start;
	quantum_reg reg;

	srand(1);
	ready();
	start = moment();
	reg = quantum_new_qureg(0, width);
	for (int i = 0; i < width; i++)
		quantum_hadamard(i, &reg);
	quantum_addscratch(scratch, &reg);
	quantum_exp_mod_n(n, x, width, bits, &reg);
	for (int i = 0; i < scratch; i++)
		quantum_bmeasure(0, &reg);
	quantum_qft(width, &reg);
	for (int i = 0; i < width / 2; i++) {
		quantum_cnot(i, width - i - 1, &reg);
		quantum_cnot(width - i - 1, i, &reg);
		quantum_cnot(i, width - i - 1, &reg);
	}
	measured = quantum_measure(reg);
	report(start, 1);
	printf("measured %llu of 2^%d\n", measured, width);
	quantum_delete_qureg(&reg);
	return 0;
}
