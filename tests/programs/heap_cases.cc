// Errors of the heap by their numbers in the Common Weakness Enumeration, each beside a twin that does the same without the
// error: `heap_cases bad`, `heap_cases good` run all of them, and no arguments list them with the word of `ulpf check`.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cwchar>
#include <new>
#include <unistd.h>

#include "heap_cases.h"

#define CASE(name, word) \
	static void name(bool); \
	static Case of_##name(#name, word, name); \
	static __attribute__((noinline)) void name(bool bad)

struct Pair {
	long first, second;
};


static volatile long sink;
static void *volatile kept;

// ---- 122: behind a block, written ----
CASE(cwe122_one_char, "outside") { volatile char *p = (char *)malloc(10); p[bad ? 10 : 9] = 'x'; free((void *)p); }
CASE(cwe122_loop, "outside") { int *p = (int *)malloc(10 * sizeof *p); for (int i = 0; i < 10 + bad; i++) p[i] = i; free(p); }
CASE(cwe122_memcpy, "outside") { char from[40] = "x", *p = (char *)malloc(20); memcpy(p, from, bad ? 40 : 20); free(p); }
CASE(cwe122_memset, "outside") { char *p = (char *)malloc(100); memset(p, 0, 100 + bad); free(p); }
CASE(cwe122_strcpy, "outside") { const char *s = "a name"; char *p = (char *)malloc(strlen(s) + !bad); strcpy(p, s); free(p); }
CASE(cwe122_strncpy, "outside") { char *p = (char *)malloc(8); strncpy(p, "abcdefghijkl", bad ? 12 : 8); free(p); }
CASE(cwe122_strcat, "outside") { char *p = (char *)malloc(bad ? 8 : 9); strcpy(p, "abcd"); strcat(p, "efgh"); free(p); }
CASE(cwe122_sprintf, "outside") { char *p = (char *)malloc(bad ? 5 : 6); sprintf(p, "%d", 12345); free(p); }
CASE(cwe122_wcscpy, "outside") { wchar_t *p = (wchar_t *)malloc((4 + !bad) * sizeof *p); wcscpy(p, L"abcd"); free(p); }
CASE(cwe122_sizeof_pointer, "outside") { Pair *p = (Pair *)malloc(bad ? sizeof p : sizeof *p); p->first = 1; p->second = 2; free(p); }
CASE(cwe122_calloc, "outside") { short *p = (short *)calloc(7, sizeof *p); p[bad ? 7 : 6] = 1; free(p); }
CASE(cwe122_realloc_smaller, "outside") { char *p = (char *)malloc(400); p = (char *)realloc(p, bad ? 100 : 400); p[200] = 1; free(p); }
CASE(cwe122_aligned, "outside") { char *p = (char *)aligned_alloc(64, 128); p[127 + bad] = 1; free(p); }
CASE(cwe122_new_array, "outside") { long *p = new long[5]; for (int i = 0; i < 5 + bad; i++) p[i] = i; delete[] p; }
CASE(cwe122_new_object, "outside") { Pair *p = new Pair; *(char *)(p + bad) = 1; delete p; }
CASE(cwe122_memmove, "outside") { char *p = new char[30]; memset(p, 1, 30); memmove(p + 10, p, 20 + bad); delete[] p; }
CASE(cwe122_read, "outside")
{
	int ends[2];
	char *p = (char *)malloc(8);
	if (pipe(ends) == 0 && write(ends[1], "0123456789abcdef", 16) == 16)
		sink = read(ends[0], p, bad ? 16 : 8);
	close(ends[0]);
	close(ends[1]);
	free(p);
}

// ---- 124: before a block, written ----
CASE(cwe124_one_char, "outside") { char *p = (char *)malloc(10); p[bad ? -1 : 0] = 'x'; free(p); }
CASE(cwe124_loop, "outside") { int *p = (int *)malloc(10 * sizeof *p); for (int i = 9; i >= -bad; i--) p[i] = i; free(p); }
CASE(cwe124_memcpy, "outside") { char from[8] = "x", *p = (char *)malloc(20); memcpy(p - 8 * bad, from, 8); free(p); }
CASE(cwe124_new_array, "outside") { int *p = new int[10]; p[bad ? -2 : 2] = 1; delete[] p; }

// ---- 126: behind a block, read ----
CASE(cwe126_one_char, "outside") { volatile char *p = (char *)calloc(10, 1); sink = p[bad ? 10 : 9]; free((void *)p); }
CASE(cwe126_loop, "outside") { volatile int *p = (int *)calloc(6, sizeof *p); for (int i = 0; i < 6 + bad; i++) sink = p[i]; free((void *)p); }
// As GCC inlines it.
static __attribute__((noinline)) size_t length_by_words(const char *s)
{
	const volatile unsigned *p = (const volatile unsigned *)s;
	for (unsigned word; word = *p, !((word - 0x01010101) & ~word & 0x80808080); )
		p++;
	return (const char *)p - s;
}
CASE(cwe126_strlen_by_words, "outside") { char *p = (char *)calloc(9, 1); memset(p, 'x', bad ? 9 : 8); p = (char *)realloc(p, bad ? 8 : 9); sink = length_by_words(p); free(p); }
CASE(cwe126_memcpy, "outside") { char to[64], *p = (char *)calloc(32, 1); memcpy(to, p, bad ? 64 : 32); sink = to[0]; free(p); }
CASE(cwe126_write, "outside")
{
	int ends[2];
	char *p = (char *)calloc(8, 1);
	if (pipe(ends) == 0)
		sink = write(ends[1], p, bad ? 16 : 8);
	close(ends[0]);
	close(ends[1]);
	free(p);
}
CASE(cwe126_no_end, "outside")
{
	volatile char *p = (char *)malloc(5);
	memcpy((void *)p, "12345", 5);
	if (!bad)
		p[4] = 0;
	for (int i = 0; i < 6 && p[i]; i++)
		sink = p[i];
	free((void *)p);
}
CASE(cwe126_new_array, "outside") { volatile double *p = new double[3](); sink = (long)p[bad ? 3 : 2]; delete[] p; }

// ---- 127: before a block, read ----
CASE(cwe127_one_char, "outside") { volatile char *p = (char *)calloc(10, 1); sink = p[bad ? -1 : 0]; free((void *)p); }
CASE(cwe127_memcpy, "outside") { char to[8], *p = (char *)calloc(32, 1); memcpy(to, p - 4 * bad, 8); sink = to[0]; free(p); }
CASE(cwe127_new_array, "outside") { volatile int *p = new int[10](); sink = p[bad ? -2 : 2]; delete[] p; }

// ---- 401: nothing points there any more ----
CASE(cwe401_malloc, "lost") { char *p = (char *)malloc(33); p[0] = 1; if (!bad) free(p); }
CASE(cwe401_new, "lost") { Pair *p = new Pair; p->first = 1; if (!bad) delete p; }
CASE(cwe401_new_array, "lost") { int *p = new int[12]; p[0] = 1; if (!bad) delete[] p; }
CASE(cwe401_strdup, "lost") { char *p = strdup("a text of its own"); if (!bad) free(p); }
CASE(cwe401_realloc, "lost") { char *p = (char *)malloc(10); p = (char *)realloc(p, 3000); if (!bad) free(p); }
CASE(cwe401_overwritten, "lost") { kept = malloc(70); if (!bad) free(kept); kept = malloc(71); free(kept); kept = nullptr; }

// ---- 415: freed twice ----
CASE(cwe415_free, "double-free") { char *p = (char *)malloc(10); free(p); if (bad) free(p); }
CASE(cwe415_delete, "double-free") { Pair *p = new Pair; delete p; if (bad) delete p; }
CASE(cwe415_delete_array, "double-free") { int *p = new int[4]; delete[] p; if (bad) delete[] p; }
CASE(cwe415_realloc, "double-free") { void *p = malloc(10), *q = realloc(p, 5000); if (bad) free(p); free(q); }

// ---- 416: used after it was freed ----
CASE(cwe416_read, "freed") { volatile int *p = (int *)calloc(4, 4); if (bad) free((void *)p); sink = p[1]; if (!bad) free((void *)p); }
CASE(cwe416_write, "freed") { volatile int *p = (int *)calloc(4, 4); if (bad) free((void *)p); p[3] = 1; if (!bad) free((void *)p); }
CASE(cwe416_delete, "freed") { volatile Pair *p = new Pair(); if (bad) delete p; sink = p->second; if (!bad) delete p; }
CASE(cwe416_memcpy, "freed") { char to[24], *p = (char *)calloc(24, 1); if (bad) free(p); memcpy(to, p, 24); sink = to[0]; if (!bad) free(p); }
CASE(cwe416_realloc, "freed") { volatile char *p = (char *)calloc(20, 1), *q = (char *)realloc((void *)p, 6000); (bad ? p : q)[7] = 1; free((void *)q); }
CASE(cwe416_write_call, "freed")
{
	int ends[2];
	char *p = (char *)calloc(8, 1);
	if (bad)
		free(p);
	if (pipe(ends) == 0)
		sink = write(ends[1], p, 8);
	close(ends[0]);
	close(ends[1]);
	if (!bad)
		free(p);
}

// ---- 590: what is freed is not of the heap ----
CASE(cwe590_stack, "invalid-free") { char here[16], *p = (char *)malloc(16); kept = bad ? here : p; free(kept); if (bad) free(p); }
CASE(cwe590_static, "invalid-free") { static char here[16]; char *p = (char *)malloc(16); kept = bad ? here : p; free(kept); if (bad) free(p); }
CASE(cwe590_delete, "invalid-free") { static Pair here; Pair *p = new Pair; Pair *volatile q = bad ? &here : p; delete q; if (bad) delete p; }

// ---- 761: the inside of a block is freed ----
CASE(cwe761_next, "invalid-free") { char *p = (char *)malloc(16); free(p + bad); if (bad) free(p); }
CASE(cwe761_search, "invalid-free")
{
	char *p = strdup("key=value"), *at = p;
	while (bad && *at != '=')
		at++;
	free(at);
	if (bad)
		free(p);
}
CASE(cwe761_delete, "invalid-free") { Pair *p = new Pair; Pair *volatile q = (Pair *)((char *)p + (bad ? 8 : 0)); delete q; if (bad) delete p; }

// ---- 762: freed by another kind of function ----
CASE(cwe762_malloc_delete, "mismatched-free") { Pair *p = (Pair *)malloc(sizeof *p); if (bad) delete p; else free(p); }
CASE(cwe762_calloc_delete_array, "mismatched-free") { char *p = (char *)calloc(4, 4); if (bad) delete[] p; else free(p); }
CASE(cwe762_new_free, "mismatched-free") { Pair *p = new Pair; if (bad) free(p); else delete p; }
CASE(cwe762_new_array_free, "mismatched-free") { char *p = new char[9]; if (bad) free(p); else delete[] p; }
CASE(cwe762_new_array_delete, "mismatched-free") { int *p = new int[9]; if (bad) delete p; else delete[] p; }
CASE(cwe762_new_delete_array, "mismatched-free") { int *p = new int; if (bad) delete[] p; else delete p; }

// Clears pointers that remain in registers and on the stack.
static __attribute__((noinline)) void scrub()
{
	char much[4096];
	memset(much, 0, sizeof much);
	kept = much;
	kept = nullptr;
}

int main(int argc, char **argv)
{
	if (argc < 2) {
		for (Case *one = Case::first; one; one = one->next)
			printf("%s %s\n", one->name, one->word);
		return 0;
	}
	for (Case *one = Case::first; one; one = one->next) {
		one->run(!strcmp(argv[1], "bad"));
		scrub();
	}
	return 0;
}
