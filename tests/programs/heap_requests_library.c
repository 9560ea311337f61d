// Client requests of libulpf: by its function if the program is linked to it (ULPF_LIBRARY), else by its macros.
#include <stdio.h>
#include <stdlib.h>
#ifdef ULPF_LIBRARY
#include "../../ulpf-lib/c/include/ulpf.h"
#define CLOSE ulpf_poison
#define OPEN ulpf_unpoison
#else
#include "../../ulpf-lib/c/include/ulpf_check.h"
#define CLOSE ULPF_POISON
#define OPEN ULPF_UNPOISON
#endif

__attribute__((noinline)) static void use(volatile char *p) { *p = 1; }

int main(int count, char **words)
{
	char *p = malloc(100);
	CLOSE(p + 10, 30);
	use(p + 9);
	use(p + 40);
	if (count > 1)
		use(p + 39);
	OPEN(p + 10, 30);
	use(p + 39);
	free(p);
	puts("well");
	(void)words;
	return 0;
}
