/* The places of heap_model.c: a function for each way to touch memory, so that an error says by its name which one it was.
 * Each makes one access of the bytes at hand->p, by one instruction, system call or function of the C library. */
#pragma once
#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#define PLACE(name) static __attribute__((noinline)) void name(struct hand *h)
enum { MOST = 256 };

/* Arguments and results of a place. Lies in no heap. */
struct hand {
	unsigned char *p;
	size_t n;
	/* Values to store, and loaded values. */
	unsigned char v[MOST] __attribute__((aligned(64))), got[MOST] __attribute__((aligned(64)));
	/* For masked accesses: a bit for each element; the same as lanes. For gathers and scatters: offsets. */
	uint64_t mask;
	int32_t lanes[16] __attribute__((aligned(64))), index[16] __attribute__((aligned(64)));
	/* Iterations that a string instruction has made; result of a call. */
	size_t made;
	long result;
};

/* A memory that the kernel reads from and writes to. */
static int file;

/* Effect on the bytes. */
enum effect {
	NOTHING,
	LOADS,
	STORES,
	XORS,
	EXCHANGES,
	/* They are stored to, but the model does not compute the value. */
	CHANGES
};
/* Set of bytes that are touched. */
enum shape { WHOLE, MASKED, PACKED, SCATTERED, ITERATED };
/* Agent of the access. */
enum by { INSTRUCTION, KERNEL, LIBRARY };
enum needs { ANY_CPU, SSE41, AVX2, AVX512 };

struct place {
	const char *name;
	void (*make)(struct hand *);
	/* Number of bytes (0: any); size of an element; alignment of p. */
	int size, element, aligned;
	enum effect effect;
	enum shape shape;
	enum by by;
	enum needs needs;
};

#define VALUE(type) (*(type *)h->v)
#define GOT(type) (*(type *)h->got)
#define AT(type) (*(type *)h->p)
#define ASM(...) __asm__ volatile(__VA_ARGS__)
typedef struct { unsigned char bytes[2]; } two;
typedef struct { unsigned char bytes[8]; } eight;
typedef struct { unsigned char bytes[10]; } ten;
typedef struct { unsigned char bytes[16]; } sixteen;

/* ---- integers ---- */
#define LOAD(name, type) PLACE(name) { type x; ASM("mov %1, %0" : "=r"(x) : "m"(AT(type))); GOT(type) = x; }
#define STORE(name, type) PLACE(name) { ASM("mov %1, %0" : "=m"(AT(type)) : "r"(VALUE(type))); }
#define XOR(name, type) PLACE(name) { ASM("xor %1, %0" : "+m"(AT(type)) : "r"(VALUE(type)) : "cc"); }
LOAD(load1, uint8_t)
LOAD(load2, uint16_t)
LOAD(load4, uint32_t)
LOAD(load8, uint64_t)
STORE(store1, uint8_t)
STORE(store2, uint16_t)
STORE(store4, uint32_t)
STORE(store8, uint64_t)
XOR(xor1, uint8_t)
XOR(xor2, uint16_t)
XOR(xor4, uint32_t)
XOR(xor8, uint64_t)
PLACE(lock_xor8) { ASM("lock xorq %1, %0" : "+m"(AT(uint64_t)) : "r"(VALUE(uint64_t)) : "cc"); }
PLACE(exchange1) { uint8_t x = VALUE(uint8_t); ASM("xchg %1, %0" : "+m"(AT(uint8_t)), "+q"(x)); GOT(uint8_t) = x; }
PLACE(exchange8) { uint64_t x = VALUE(uint64_t); ASM("xchg %1, %0" : "+m"(AT(uint64_t)), "+r"(x)); GOT(uint64_t) = x; }
PLACE(lock_add4) { uint32_t x = VALUE(uint32_t); ASM("lock xaddl %1, %0" : "+m"(AT(uint32_t)), "+r"(x) : : "cc"); }
PLACE(increment2) { ASM("incw %0" : "+m"(AT(uint16_t)) : : "cc"); }
PLACE(negate8) { ASM("negq %0" : "+m"(AT(uint64_t)) : : "cc"); }
PLACE(shift4) { ASM("shll $3, %0" : "+m"(AT(uint32_t)) : : "cc"); }
PLACE(set1) { ASM("test %%eax, %%eax; setz %0" : "=m"(AT(uint8_t)) : : "cc"); }
PLACE(immediate4) { ASM("movl $0x12345678, %0" : "=m"(AT(uint32_t))); }
PLACE(compare_exchange4) { uint32_t x = VALUE(uint32_t); ASM("lock cmpxchgl %2, %0" : "+m"(AT(uint32_t)), "+a"(x) : "r"(1) : "cc"); }
PLACE(compare_exchange8b) { ASM("lock cmpxchg8b %0" : "+m"(AT(eight)) : "a"(1), "d"(2), "b"(3), "c"(4) : "cc"); }
PLACE(compare_exchange16b)
{
	uint64_t a = 1, d = 2;
	ASM("lock cmpxchg16b %0" : "+m"(AT(sixteen)), "+a"(a), "+d"(d) : "b"(3), "c"(4) : "cc");
}
/* Addresses a word of a bit string by its number. The base may be poisoned. */
PLACE(set_bit8) { ASM("btsq %1, (%0)" : : "r"(h->p - 64), "r"(64L * 8 + (h->v[0] & 63)) : "memory", "cc"); }
PLACE(compare4) { ASM("cmpl $7, %0" : : "m"(AT(uint32_t)) : "cc"); GOT(uint32_t) = 0; }
PLACE(widen2) { uint32_t x; ASM("movzwl %1, %0" : "=r"(x) : "m"(AT(uint16_t))); GOT(uint16_t) = (uint16_t)x; }
PLACE(translate1) { uint64_t x = h->v[0]; ASM("xlat" : "+a"(x) : "b"(h->p - h->v[0])); GOT(uint8_t) = (uint8_t)x; }
PLACE(push_from8) { uint64_t x; ASM("pushq %1; popq %0" : "=r"(x) : "m"(AT(uint64_t))); GOT(uint64_t) = x; }
PLACE(pop_to8) { ASM("pushq %1; popq (%0)" : : "r"(h->p), "r"(VALUE(uint64_t)) : "memory"); }
/* The stack is in a block for a moment. */
PLACE(push_to8)
{
	ASM("mov %%rsp, %%rbx; lea 8(%0), %%rsp; push %1; mov %%rbx, %%rsp" : : "r"(h->p), "r"(VALUE(uint64_t)) : "rbx", "memory");
}
PLACE(pop_from8)
{
	uint64_t x;
	ASM("mov %%rsp, %%rbx; mov %1, %%rsp; pop %0; mov %%rbx, %%rsp" : "=&r"(x) : "r"(h->p) : "rbx", "memory");
	GOT(uint64_t) = x;
}
PLACE(control2) { ASM("fnstcw %0" : "=m"(AT(two))); }
PLACE(load10) { ASM("fldt %1; fstpt %0" : "=m"(GOT(ten)) : "m"(AT(ten))); }
PLACE(store10) { ASM("fldt %1; fstpt %0" : "=m"(AT(ten)) : "m"(VALUE(ten))); }
PLACE(not_temporal8) { ASM("movnti %1, %0" : "=m"(AT(uint64_t)) : "r"(VALUE(uint64_t))); }
/* These touch nothing. */
PLACE(prefetch) { ASM("prefetcht0 (%0)" : : "r"(h->p)); }
PLACE(address) { unsigned char *x; ASM("lea (%1), %0; nopl (%1)" : "=r"(x) : "r"(h->p)); h->got[0] = (unsigned char)(uintptr_t)x; }

/* ---- vectors ---- */
#define VECTORS "xmm0", "xmm1", "xmm2", "memory"
#define VLOAD(name, load, store) PLACE(name) { ASM(load " (%0), %%" store ", (%1)" : : "r"(h->p), "r"(h->got) : VECTORS); }
#define VSTORE(name, load, store) PLACE(name) { ASM(load " (%1), %%" store ", (%0)" : : "r"(h->p), "r"(h->v) : VECTORS); }
VLOAD(load16, "movdqu", "xmm0; movdqu %%xmm0")
VLOAD(load16_aligned, "movaps", "xmm0; movaps %%xmm0")
VLOAD(load_low8, "movq", "xmm0; movq %%xmm0")
VLOAD(load_high8, "movhps", "xmm0; movhps %%xmm0")
VLOAD(load_single4, "movd", "xmm0; movd %%xmm0")
VLOAD(load32, "vmovdqu", "ymm0; vmovdqu %%ymm0")
VLOAD(load64, "vmovdqu64", "zmm0; vmovdqu64 %%zmm0")
VLOAD(spread4, "vbroadcastss", "ymm0; vmovd %%xmm0")
VSTORE(store16, "movdqu", "xmm0; movups %%xmm0")
VSTORE(store16_aligned, "movaps", "xmm0; movaps %%xmm0")
VSTORE(store16_not_temporal, "movaps", "xmm0; movntdq %%xmm0")
VSTORE(store_low8, "movq", "xmm0; movq %%xmm0")
VSTORE(store_high8, "movhps", "xmm0; movhps %%xmm0")
VSTORE(store_single4, "movd", "xmm0; movd %%xmm0")
VSTORE(store32, "vmovdqu", "ymm0; vmovdqu %%ymm0")
VSTORE(store64, "vmovdqu64", "zmm0; vmovdqu64 %%zmm0")
PLACE(extract2) { ASM("movdqu (%1), %%xmm0; pextrw $0, %%xmm0, (%0)" : : "r"(h->p), "r"(h->v) : VECTORS); }
PLACE(insert1) { ASM("pinsrb $0, (%0), %%xmm0; pextrb $0, %%xmm0, (%1)" : : "r"(h->p), "r"(h->got) : VECTORS); }
PLACE(widen8) { ASM("pmovzxbw (%0), %%xmm0; packuswb %%xmm0, %%xmm0; movq %%xmm0, (%1)" : : "r"(h->p), "r"(h->got) : VECTORS); }
PLACE(masked_load8)
{
	ASM("kmovq %2, %%k1; vmovdqu8 (%0), %%zmm0%{%%k1%}%{z%}; vmovdqu64 %%zmm0, (%1)" : : "r"(h->p), "r"(h->got), "r"(h->mask) : VECTORS);
}
PLACE(masked_store8)
{
	ASM("kmovq %2, %%k1; vmovdqu64 (%1), %%zmm0; vmovdqu8 %%zmm0, (%0)%{%%k1%}" : : "r"(h->p), "r"(h->v), "r"(h->mask) : VECTORS);
}
PLACE(masked_load32)
{
	ASM("kmovq %2, %%k1; vmovdqu32 (%0), %%zmm0%{%%k1%}%{z%}; vmovdqu64 %%zmm0, (%1)" : : "r"(h->p), "r"(h->got), "r"(h->mask) : VECTORS);
}
PLACE(masked_store32)
{
	ASM("kmovq %2, %%k1; vmovdqu64 (%1), %%zmm0; vmovdqu32 %%zmm0, (%0)%{%%k1%}" : : "r"(h->p), "r"(h->v), "r"(h->mask) : VECTORS);
}
PLACE(masked_load_by_lanes)
{
	ASM("vmovdqu (%2), %%ymm1; vpmaskmovd (%0), %%ymm1, %%ymm0; vmovdqu %%ymm0, (%1)" : : "r"(h->p), "r"(h->got), "r"(h->lanes) : VECTORS);
}
PLACE(masked_store_by_lanes)
{
	ASM("vmovdqu (%2), %%ymm1; vmovdqu (%1), %%ymm0; vpmaskmovd %%ymm0, %%ymm1, (%0)" : : "r"(h->p), "r"(h->v), "r"(h->lanes) : VECTORS);
}
PLACE(packed_store)
{
	ASM("kmovq %2, %%k1; vmovdqu64 (%1), %%zmm0; vpcompressd %%zmm0, (%0)%{%%k1%}" : : "r"(h->p), "r"(h->v), "r"(h->mask) : VECTORS);
}
PLACE(packed_load)
{
	ASM("kmovq %2, %%k1; vpexpandd (%0), %%zmm0%{%%k1%}%{z%}; vmovdqu64 %%zmm0, (%1)" : : "r"(h->p), "r"(h->got), "r"(h->mask) : VECTORS);
}
PLACE(gather)
{
	ASM("vmovdqu (%2), %%ymm1; vmovdqu (%3), %%ymm2; vpgatherdd %%ymm2, (%0,%%ymm1), %%ymm0; vmovdqu %%ymm0, (%1)"
	    : : "r"(h->p), "r"(h->got), "r"(h->index), "r"(h->lanes) : VECTORS);
}
PLACE(scatter)
{
	ASM("kmovq %3, %%k1; vmovdqu64 (%2), %%ymm1; vmovdqu64 (%1), %%ymm0; vpscatterdd %%ymm0, (%0,%%ymm1)%{%%k1%}"
	    : : "r"(h->p), "r"(h->v), "r"(h->index), "r"(h->mask) : VECTORS);
}

/* ---- string instructions ---- */
PLACE(rep_store1) { size_t n = h->n; unsigned char *p = h->p; ASM("rep stosb" : "+D"(p), "+c"(n) : "a"(h->v[0]) : "memory"); }
PLACE(rep_store8) { size_t n = h->n / 8; unsigned char *p = h->p; ASM("rep stosq" : "+D"(p), "+c"(n) : "a"(VALUE(uint64_t)) : "memory"); }
PLACE(rep_copy_to1)
{
	size_t n = h->n;
	unsigned char *p = h->p, *from = h->v;
	ASM("rep movsb" : "+D"(p), "+S"(from), "+c"(n) : : "memory");
}
PLACE(rep_copy_from1)
{
	size_t n = h->n;
	unsigned char *p = h->p, *to = h->got;
	ASM("rep movsb" : "+D"(to), "+S"(p), "+c"(n) : : "memory");
}
PLACE(rep_copy_to4)
{
	size_t n = h->n / 4;
	unsigned char *p = h->p, *from = h->v;
	ASM("rep movsl" : "+D"(p), "+S"(from), "+c"(n) : : "memory");
}
PLACE(rep_copy_back1)
{
	size_t n = h->n;
	unsigned char *p = h->p + n - 1, *from = h->v + n - 1;
	ASM("std; rep movsb; cld" : "+D"(p), "+S"(from), "+c"(n) : : "memory");
}
PLACE(string_load1) { unsigned char *p = h->p, x; ASM("lodsb" : "+S"(p), "=a"(x) : : "memory"); h->got[0] = x; }
PLACE(rep_search1)
{
	size_t n = h->n;
	unsigned char *p = h->p;
	ASM("repne scasb" : "+D"(p), "+c"(n) : "a"(h->v[0]) : "memory", "cc");
	h->made = h->n - n;
}
PLACE(rep_compare1)
{
	size_t n = h->n;
	unsigned char *p = h->p, *with = h->v;
	ASM("repe cmpsb" : "+S"(p), "+D"(with), "+c"(n) : : "memory", "cc");
	h->made = h->n - n;
}

/* ---- system calls; the instruction is here ---- */
#define SYSTEM(number, a, b, c) \
	register long r10 __asm__("r10") = 0; \
	register long r8 __asm__("r8") = 0; \
	ASM("syscall" : "=a"(h->result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8) : "rcx", "r11", "memory")
PLACE(system_read) { SYSTEM(SYS_pread64, file, h->p, h->n); }
PLACE(system_write) { SYSTEM(SYS_pwrite64, file, h->p, h->n); }
PLACE(system_random) { SYSTEM(SYS_getrandom, h->p, h->n, 0); }
/* The second of two parts. */
PLACE(system_readv)
{
	struct iovec parts[] = { { h->got, 5 }, { h->p, h->n } };
	SYSTEM(SYS_preadv, file, parts, 2);
	h->result -= 5;
}
PLACE(system_writev)
{
	struct iovec parts[] = { { h->v, 5 }, { h->p, h->n } };
	SYSTEM(SYS_pwritev, file, parts, 2);
	h->result -= 5;
}

/* ---- functions of the C library ---- */
PLACE(library_copy_to) { memcpy(h->p, h->v, h->n); }
PLACE(library_copy_from) { memcpy(h->got, h->p, h->n); }
PLACE(library_move_to) { memmove(h->p, h->v, h->n); }
PLACE(library_fill) { memset(h->p, h->v[0], h->n); }

/* Never wrong: a string that ends with its block, of h->n bytes without its end, which h->v has, too. */
static __attribute__((noinline)) int strings(struct hand *h)
{
	const char *text = (const char *)h->p, *same = (const char *)h->v;
	char *copy = (char *)h->got;
	size_t n = h->n;
	int right = strlen(text) == n && strcmp(text, same) == 0 && memcmp(text, same, n + 1) == 0 && strchr(text, 0) == text + n;
	right &= strnlen(text, n + 9) == n && strncmp(text, same, n + 9) == 0 && memchr(text, 0, n + 1) == text + n && !strchr(text, 1);
	strcpy(copy, text);
	right &= memcmp(copy, same, n + 1) == 0;
	strncpy(copy, text, n);
	strcpy((char *)h->p, same);
	return right && strstr(text, same) == text && strspn(text, same) == n;
}
