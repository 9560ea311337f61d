/* Allocates, frees and accesses at random, some of it wrong on purpose, and knows which: the oracle of `ulpf check`.
 *
 *     heap_model SEED THREADS ACCESSES WRONG QUARANTINE [overlaps] [signals]
 *
 * WRONG of a thousand turns make an error. It has to be 0 where no checker protects the program's heap.
 * QUARANTINE is the number of bytes of freed blocks that the allocator certainly does not use again. At the end, the program
 * prints each error as `PLACE KIND AT_LEAST AT_MOST`, then `accesses NUMBER`. Each error is made at a place of
 * heap_model_places.h or at a function bad_… below.
 *
 *     blocks[]   any thread takes one, uses it, frees it, gives it back        freed[]   the same for freed blocks
 *       shadow   expected contents of its first and its last bytes
 *
 * `overlaps`: copies between places that overlap are among the errors. `signals`: a signal handler makes accesses, too, at any
 * time; then no run is like another.
 *
 * The model's own data lies in no heap. Built as C++ too (heap_model_new.cc), with new and delete.
 */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#include "heap_model_places.h"

enum { BLOCKS = 224, HUGE_ONES = 4, LARGE_ONES = 24, FREED = 96, THREADS = 8, NEAR = 16, EDGE = 8 << 10, TURNS_OF_A_THREAD = 4000 };
enum wrong { RIGHT, OUTSIDE, INSIDE_FREED, TWICE, INVALID, MISMATCHED, OVERLAPS, KINDS };
static const char *const KIND[KINDS] = { "", "outside", "freed", "double-free", "invalid-free", "mismatched-free", "overlap" };
enum { BY_MALLOC, BY_NEW, BY_NEW_ARRAY, BY_NEW_ALIGNED };

struct block {
	int busy, by;
	unsigned char *p;
	size_t size;
	/* Of a freed one: the bytes that had been freed before. */
	uint64_t at;
	/* Its first and its last EDGE bytes; of a smaller one all. */
	unsigned char shadow[2 * EDGE];
};

static struct block blocks[BLOCKS], freed[FREED];
static uint64_t freed_bytes, quarantine;
static unsigned wrongs;
static int overlaps;
/* For each thread, `at` of the freed block that it uses. */
static uint64_t uses_freed[THREADS];
#define NOTHING_FREED UINT64_MAX

#define PLACE_OF(name, size, element, aligned, effect, shape, by, needs) { #name, name, size, element, aligned, effect, shape, by, needs }
#define ONE(name, size, effect) PLACE_OF(name, size, 1, 1, effect, WHOLE, INSTRUCTION, ANY_CPU)
#define VECTOR(name, size, aligned, effect, needs) PLACE_OF(name, size, 1, aligned, effect, WHOLE, INSTRUCTION, needs)
#define SOME(name, element, effect, shape, needs, size) PLACE_OF(name, size, element, 1, effect, shape, INSTRUCTION, needs)
#define CALL(name, effect, by) PLACE_OF(name, 0, 1, 1, effect, WHOLE, by, ANY_CPU)
static const struct place PLACES[] = {
	ONE(load1, 1, LOADS), ONE(load2, 2, LOADS), ONE(load4, 4, LOADS), ONE(load8, 8, LOADS),
	ONE(store1, 1, STORES), ONE(store2, 2, STORES), ONE(store4, 4, STORES), ONE(store8, 8, STORES),
	ONE(xor1, 1, XORS), ONE(xor2, 2, XORS), ONE(xor4, 4, XORS), ONE(xor8, 8, XORS), ONE(lock_xor8, 8, XORS),
	ONE(exchange1, 1, EXCHANGES), ONE(exchange8, 8, EXCHANGES), ONE(lock_add4, 4, CHANGES), ONE(increment2, 2, CHANGES),
	ONE(negate8, 8, CHANGES), ONE(shift4, 4, CHANGES), ONE(set1, 1, CHANGES), ONE(immediate4, 4, CHANGES),
	ONE(compare_exchange4, 4, CHANGES), ONE(compare_exchange8b, 8, CHANGES), VECTOR(compare_exchange16b, 16, 16, CHANGES, ANY_CPU),
	ONE(set_bit8, 8, CHANGES), ONE(compare4, 4, NOTHING), ONE(widen2, 2, LOADS), ONE(translate1, 1, LOADS),
	ONE(push_from8, 8, LOADS), ONE(pop_to8, 8, STORES), ONE(push_to8, 8, STORES), ONE(pop_from8, 8, LOADS),
	ONE(control2, 2, CHANGES), ONE(load10, 10, LOADS), ONE(store10, 10, STORES), ONE(not_temporal8, 8, STORES),
	ONE(prefetch, 0, NOTHING), ONE(address, 0, NOTHING),
	ONE(load16, 16, LOADS), VECTOR(load16_aligned, 16, 16, LOADS, ANY_CPU), ONE(load_low8, 8, LOADS), ONE(load_high8, 8, CHANGES),
	ONE(load_single4, 4, LOADS), VECTOR(load32, 32, 1, LOADS, AVX2), VECTOR(load64, 64, 1, LOADS, AVX512), VECTOR(spread4, 4, 1, LOADS, AVX2),
	ONE(store16, 16, STORES), VECTOR(store16_aligned, 16, 16, STORES, ANY_CPU), VECTOR(store16_not_temporal, 16, 16, STORES, ANY_CPU),
	ONE(store_low8, 8, STORES), ONE(store_high8, 8, CHANGES), ONE(store_single4, 4, STORES), VECTOR(store32, 32, 1, STORES, AVX2),
	VECTOR(store64, 64, 1, STORES, AVX512), VECTOR(extract2, 2, 1, STORES, SSE41), VECTOR(insert1, 1, 1, LOADS, SSE41), VECTOR(widen8, 8, 1, LOADS, SSE41),
	SOME(masked_load8, 1, LOADS, MASKED, AVX512, 64), SOME(masked_store8, 1, STORES, MASKED, AVX512, 64),
	SOME(masked_load32, 4, LOADS, MASKED, AVX512, 64), SOME(masked_store32, 4, STORES, MASKED, AVX512, 64),
	SOME(masked_load_by_lanes, 4, LOADS, MASKED, AVX2, 32), SOME(masked_store_by_lanes, 4, STORES, MASKED, AVX2, 32),
	SOME(packed_load, 4, NOTHING, PACKED, AVX512, 64), SOME(packed_store, 4, CHANGES, PACKED, AVX512, 64),
	SOME(gather, 4, NOTHING, SCATTERED, AVX2, 64), SOME(scatter, 4, CHANGES, SCATTERED, AVX512, 64),
	SOME(rep_store1, 1, CHANGES, ITERATED, ANY_CPU, 0), SOME(rep_store8, 8, CHANGES, ITERATED, ANY_CPU, 0),
	SOME(rep_copy_to1, 1, STORES, ITERATED, ANY_CPU, 0), SOME(rep_copy_from1, 1, LOADS, ITERATED, ANY_CPU, 0),
	SOME(rep_copy_to4, 4, STORES, ITERATED, ANY_CPU, 0), SOME(rep_copy_back1, 1, STORES, ITERATED, ANY_CPU, 0),
	ONE(string_load1, 1, LOADS), SOME(rep_search1, 1, NOTHING, ITERATED, ANY_CPU, 0), SOME(rep_compare1, 1, NOTHING, ITERATED, ANY_CPU, 0),
	CALL(system_read, CHANGES, KERNEL), CALL(system_write, NOTHING, KERNEL), CALL(system_random, CHANGES, KERNEL),
	CALL(system_readv, CHANGES, KERNEL), CALL(system_writev, NOTHING, KERNEL),
	CALL(library_copy_to, STORES, LIBRARY), CALL(library_copy_from, LOADS, LIBRARY), CALL(library_move_to, STORES, LIBRARY),
	CALL(library_fill, CHANGES, LIBRARY),
};
enum { PLACES_OF_ACCESSES = sizeof PLACES / sizeof *PLACES };

/* ---- what is expected ---- */

struct expected { uint64_t least, most; };
static struct expected of_accesses[PLACES_OF_ACCESSES][KINDS];
static const char *bad_names[32];
static struct expected of_bad[32][KINDS];
static uint64_t accesses, seeds;

static void count(struct expected *e, uint64_t least, uint64_t most)
{
	__atomic_fetch_add(&e->least, least, __ATOMIC_RELAXED);
	__atomic_fetch_add(&e->most, most, __ATOMIC_RELAXED);
}

/* An error that a function is about to make. */
static void bad(const char *name, enum wrong wrong)
{
	for (int n = 0; n < 32; n++) {
		const char *none = NULL;
		if (__atomic_compare_exchange_n(&bad_names[n], &none, name, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST) || none == name)
			return count(&of_bad[n][wrong], 1, 1);
	}
	abort();
}

static void tell(const char *place, const struct expected *e)
{
	for (int kind = 1; kind < KINDS; kind++) {
		char line[160];
		int n = snprintf(line, sizeof line, "%s %s %lu %lu\n", place, KIND[kind], e[kind].least, e[kind].most);
		if (e[kind].most && write(1, line, (size_t)n) != n)
			_exit(4);
	}
}

static __attribute__((noreturn)) void differs(const char *what, const struct block *b, long at)
{
	char line[200];
	int n = snprintf(line, sizeof line, "heap_model: %s: byte %ld of a block of %zu bytes at %p is not what it was\n", what, at, b->size, (void *)b->p);
	_exit(write(2, line, (size_t)n) == n ? 3 : 4);
}

/* ---- a thread ---- */

struct mine {
	struct hand hand;
	uint64_t random, number, left, made;
};

static uint64_t any(struct mine *m, uint64_t below)
{
	m->random ^= m->random << 13;
	m->random ^= m->random >> 7;
	m->random ^= m->random << 17;
	return (m->random >> 11) % below;
}

static int has_cpu(enum needs needs)
{
	switch (needs) {
	case SSE41: return __builtin_cpu_supports("sse4.1");
	case AVX2: return __builtin_cpu_supports("avx2");
	case AVX512: return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
	default: return 1;
	}
}

/* Address of a byte's expected value, or NULL if it is unknown. */
static unsigned char *known(struct block *b, long at)
{
	long size = (long)b->size;
	if (at < 0 || at >= size)
		return NULL;
	if (size <= 2 * EDGE || at < EDGE)
		return at < 2 * EDGE ? b->shadow + at : NULL;
	return at >= size - EDGE ? b->shadow + 2 * EDGE - (size - at) : NULL;
}

/* ---- classification of accesses ---- */

/* Classifies an access to [at, at + n) of the block. A load of a whole aligned word with an addressable part is no error. */
static enum wrong judge(const struct block *b, int live, long at, long n, int loads)
{
	enum wrong found = RIGHT;
	int open = 0;
	for (long i = at; i < at + n; i++) {
		int inside = i >= 0 && i < (long)b->size;
		open |= live && inside;
		if (found == RIGHT && !(live && inside))
			found = inside ? INSIDE_FREED : OUTSIDE;
	}
	int whole = n >= 8 && (n & (n - 1)) == 0 && ((uintptr_t)(b->p + at) & (uintptr_t)(n - 1)) == 0;
	return loads && open && whole ? RIGHT : found;
}

/* A part of an access, [at, at + n) from its address, and what is stored there or loaded from there. */
struct part { long at, n, value; };

/* The accesses that an instruction makes, one after the other. */
static int parts(const struct place *w, const struct hand *h, struct part *part)
{
	int n = 0, element = w->element;
	long most = w->size ? w->size / element : (long)h->n / element;
	switch (w->shape) {
	case WHOLE:
		part[n++] = (struct part){ 0, w->size ? w->size : (long)h->n, 0 };
		break;
	case MASKED: /* What is side by side is one. */
		for (long i = 0; i < most; i++)
			if (h->mask >> i & 1) {
				if (i && h->mask >> (i - 1) & 1)
					part[n - 1].n += element;
				else
					part[n++] = (struct part){ i * element, element, i * element };
			}
		break;
	case PACKED:
		if (h->mask)
			part[n++] = (struct part){ 0, element * __builtin_popcountl(h->mask & ((1ul << most) - 1)), 0 };
		break;
	case SCATTERED:
		for (int i = 0; i < 8; i++)
			if (h->mask >> i & 1)
				part[n++] = (struct part){ h->index[i], element, i * element };
		break;
	case ITERATED:
		for (long i = 0; i < most && (w->effect != NOTHING || i < (long)h->made); i++)
			part[n++] = (struct part){ i * element, element, i * element };
	}
	return n;
}

static void look(struct block *b, const struct place *w, long at, const unsigned char *got, long n)
{
	for (long i = 0; i < n; i++) {
		const unsigned char *is = known(b, at + i);
		if (is && *is != got[i])
			differs(w->name, b, at + i);
	}
}

/* The bytes of a live block are what the access has made of them. */
static void follow(struct block *b, const struct place *w, const struct hand *h, long at, const struct part *part)
{
	if (w->effect == LOADS || w->effect == EXCHANGES)
		look(b, w, at + part->at, h->got + part->value, part->n);
	for (long i = 0; i < part->n; i++) {
		unsigned char *is = known(b, at + part->at + i);
		if (!is)
			continue;
		if (w->effect == STORES || w->effect == EXCHANGES)
			*is = h->v[part->value + i];
		else if (w->effect == XORS)
			*is ^= h->v[i];
		else if (w->effect == CHANGES)
			*is = *(volatile unsigned char *)(b->p + at + part->at + i);
	}
}

static void prepare(struct mine *m, const struct place *w)
{
	struct hand *h = &m->hand;
	for (int i = 0; i < MOST; i += 8) {
		uint64_t x = any(m, UINT64_MAX) * 0x9e3779b97f4a7c15u;
		__builtin_memcpy(h->v + i, &x, 8);
	}
	if (w->shape == MASKED || w->shape == PACKED || w->shape == SCATTERED) {
		int elements = w->shape == SCATTERED ? 8 : w->size / w->element;
		h->mask = m->random * 0x9e3779b97f4a7c15u;
		if (any(m, 3) == 0)
			h->mask &= ~0ul << any(m, (uint64_t)elements);
		h->mask &= ~0ul >> (64 - elements);
		for (int i = 0; i < 16; i++) {
			h->lanes[i] = h->mask >> i & 1 ? -1 : 0;
			h->index[i] = (int32_t)any(m, 61);
		}
	}
}

/* One access of the block at `at`, right or wrong, and what the model makes of it. */
static __attribute__((noinline)) void use(struct mine *m, const struct place *w, struct block *b, int live, long at)
{
	struct hand *h = &m->hand;
	struct part part[MOST];
	h->p = b->p + at;
	w->make(h);
	m->made++;
	int n = parts(w, h, part);
	struct expected *expected = of_accesses[w - PLACES];
	for (int i = 0; i < n && w->make != prefetch && w->make != address; i++) {
		int loads = w->by == INSTRUCTION && (w->effect == LOADS || w->effect == NOTHING || w->make == load_high8);
		enum wrong wrong = judge(b, live, at + part[i].at, part[i].n, loads);
		if (wrong != RIGHT)
			count(&expected[wrong], 1, w->by == LIBRARY ? (uint64_t)part[i].n + NEAR : 1);
		if (live && w->make != load_high8)
			follow(b, w, h, at, &part[i]);
	}
	if (w->by == KERNEL && h->result != (long)h->n)
		differs(w->name, b, at);
}

/* The bytes that the access is sure to lie in, from its address. */
static long reach(const struct place *w, const struct hand *h)
{
	return w->size ? w->size : (long)h->n;
}

static void pick(struct mine *m, const struct place **w)
{
	do
		*w = &PLACES[any(m, PLACES_OF_ACCESSES)];
	while (!has_cpu((*w)->needs));
	prepare(m, *w);
	m->hand.n = 1 + any(m, any(m, 4) ? 32 : 200);
}

static int is_aligned(const struct place *w, const struct block *b, long at)
{
	return ((uintptr_t)(b->p + at) & (uintptr_t)(w->aligned - 1)) == 0;
}

/* An access within a live block; 0: it does not fit. */
static int use_well(struct mine *m, struct block *b)
{
	const struct place *w;
	pick(m, &w);
	long size = (long)b->size, n = reach(w, &m->hand);
	if (n > size)
		return 0;
	/* Most at an edge: of the block, of a page. */
	long at = (long)any(m, (uint64_t)(size - n) + 1);
	switch (any(m, 4)) {
	case 0: at = size - n - (long)any(m, 4); break;
	case 1: at = (long)any(m, 4); break;
	case 2: at = (long)(-(uintptr_t)b->p % 4096) - (long)any(m, (uint64_t)n + 1); break;
	}
	at -= (long)((uintptr_t)(b->p + at) % (uintptr_t)w->aligned);
	if (at < 0 || at + n > size)
		return 0;
	use(m, w, b, 1, at);
	return 1;
}

/* An access of which some bytes lie at most NEAR bytes beside the block, or in a freed one. */
static void use_badly(struct mine *m, struct block *b, int live)
{
	const struct place *w;
	for (int tries = 0; tries < 30; tries++) {
		pick(m, &w);
		long size = (long)b->size, n = reach(w, &m->hand), at;
		switch (any(m, live ? 2 : 3)) {
		case 0: at = size - n + 1 + (long)any(m, NEAR); break;
		case 1: at = -1 - (long)any(m, NEAR); break;
		default: at = size > n ? (long)any(m, (uint64_t)(size - n)) : 0;
		}
		if (at < -NEAR || at + n > size + NEAR || !is_aligned(w, b, at))
			continue;
		/* How a function cuts its accesses is its own business: they are all of one kind. */
		int inside = at >= 0 && at + n <= size, outside = at + n <= 0 || at >= size;
		if (!live && w->by == LIBRARY && !inside && !outside)
			continue;
		return use(m, w, b, live, at);
	}
}

/* ---- blocks ---- */

static int take(struct block *b)
{
	return !__atomic_load_n(&b->busy, __ATOMIC_RELAXED) && !__atomic_exchange_n(&b->busy, 1, __ATOMIC_ACQUIRE);
}

static void give(struct block *b)
{
	__atomic_store_n(&b->busy, 0, __ATOMIC_RELEASE);
}

static size_t some_size(struct mine *m, long slot)
{
	if (slot < HUGE_ONES)
		return (1 << 20) - 50 + any(m, 2 << 20);
	if (slot < LARGE_ONES)
		return any(m, 2) ? 10000 + any(m, 290000) : (1 + any(m, 40)) * 4096 - any(m, 3);
	switch (any(m, 12)) {
	case 0: return any(m, 3) ? any(m, 4) : 0;
	case 1: case 2: case 3: case 4: return 1 + any(m, 48);
	case 5: case 6: case 7: return 30 + any(m, 300);
	case 8: return (1 + any(m, 12)) * 16 - any(m, 2);
	case 9: return 4096 * (1 + any(m, 3)) - any(m, 40);
	case 10: return 4096 * (1 + any(m, 3));
	default: return 300 + any(m, 5000);
	}
}

/* Fills a new block from its byte `from` on, so that its contents are known. */
static void fill(struct mine *m, struct block *b, size_t from)
{
	struct hand *h = &m->hand;
	size_t size = b->size, first = size <= 2 * EDGE ? size : EDGE, last = size <= 2 * EDGE || size - EDGE < from ? from : size - EDGE;
	h->v[0] = (unsigned char)any(m, 256);
	if (from < first) {
		h->p = b->p + from;
		h->n = first - from;
		library_fill(h);
		memset(b->shadow + from, h->v[0], h->n);
		m->made++;
	}
	if (size > 2 * EDGE) {
		h->p = b->p + last;
		h->n = size - last;
		library_fill(h);
		memset(b->shadow + 2 * EDGE - h->n, h->v[0], h->n);
		m->made++;
	}
}

static void look_at_all(struct mine *m, struct block *b, size_t n)
{
	static const struct place whole = PLACE_OF(library_copy_from, 0, 1, 1, LOADS, WHOLE, LIBRARY, ANY_CPU);
	struct hand *h = &m->hand;
	for (size_t at = 0; at < n; at += h->n) {
		h->p = b->p + at;
		h->n = n - at < MOST ? n - at : MOST;
		library_copy_from(h);
		m->made++;
		look(b, &whole, (long)at, h->got, (long)h->n);
	}
}

#ifdef __cplusplus
#include <new>
static unsigned char *obtain_new(struct mine *m, struct block *b, size_t size)
{
	/* No block of libstdc++ is empty. Up to GCC 12, it makes the size of an aligned one a multiple of that. */
	b->size += !size;
	switch (any(m, 5)) {
	case 0: b->by = BY_NEW; return (unsigned char *)::operator new(size);
	case 1: b->by = BY_NEW; return (unsigned char *)::operator new(size, std::nothrow);
	case 2: b->by = BY_NEW_ARRAY; return (unsigned char *)::operator new[](size);
	case 3: b->by = BY_NEW_ARRAY; return (unsigned char *)::operator new[](size, std::nothrow);
	default:
		b->by = BY_NEW_ALIGNED;
		b->size = (b->size + 63) / 64 * 64;
		return (unsigned char *)::operator new(b->size, std::align_val_t(64));
	}
}
static void release_new(struct block *b)
{
	switch (b->by) {
	case BY_NEW: return b->size % 2 ? ::operator delete(b->p) : ::operator delete(b->p, b->size);
	case BY_NEW_ARRAY: return b->size % 2 ? ::operator delete[](b->p) : ::operator delete[](b->p, b->size);
	default: return ::operator delete(b->p, std::align_val_t(64));
	}
}
/* It is freed all the same. */
static __attribute__((noinline)) void bad_free_of_new(struct block *b) { bad(__func__, MISMATCHED); free(b->p); }
static __attribute__((noinline)) void bad_delete_of_other(struct block *b) { bad(__func__, MISMATCHED); ::operator delete(b->p); }
static __attribute__((noinline)) void bad_delete_array_of_other(struct block *b) { bad(__func__, MISMATCHED); ::operator delete[](b->p); }
static __attribute__((noinline)) void bad_delete_again(struct block *b) { bad(__func__, TWICE); ::operator delete(b->p); }
static int release_badly(struct mine *m, struct block *b)
{
	if (any(m, 1000) >= wrongs)
		return 0;
	if (b->by != BY_MALLOC && any(m, 2))
		return bad_free_of_new(b), 1;
	if (b->by == BY_NEW || b->by == BY_NEW_ALIGNED)
		return bad_delete_array_of_other(b), 1;
	return bad_delete_of_other(b), 1;
}
#else
static unsigned char *obtain_new(struct mine *m, struct block *b, size_t size) { (void)m; (void)b; return (unsigned char *)malloc(size); }
static void release_new(struct block *b) { free(b->p); }
static int release_badly(struct mine *m, struct block *b) { (void)m; (void)b; return 0; }
static void bad_delete_again(struct block *b) { (void)b; }
#endif

static void obtain(struct mine *m, struct block *b)
{
	size_t size = b->size = some_size(m, b - blocks), align = 16ul << any(m, 9);
	unsigned char *p = NULL;
	int zeroed = 0;
	b->by = BY_MALLOC;
	switch (any(m, 8)) {
	case 0: case 1: p = (unsigned char *)malloc(size); break;
	case 2: p = (unsigned char *)calloc(1, size); zeroed = 1; break;
	case 3: p = (unsigned char *)realloc(NULL, size); break;
	case 4:
		b->size = size = (size + align - 1) / align * align;
		p = (unsigned char *)aligned_alloc(align, size);
		break;
	case 5:
		if (posix_memalign((void **)&p, align, size))
			p = NULL;
		break;
	case 6:
		align = size % 2 ? 1 : 3;
		p = (unsigned char *)calloc(align, size / align);
		b->size = size = size / align * align;
		zeroed = 1;
		break;
	default: p = obtain_new(m, b, size);
	}
	if (!p && size)
		differs("no memory", b, 0);
	b->p = p;
	if (!p)
		return;
	if (zeroed) {
		size_t all = size <= 2 * EDGE ? size : EDGE;
		memset(b->shadow, 0, sizeof b->shadow);
		look_at_all(m, b, all);
		if (any(m, 2) == 0)
			return;
	}
	fill(m, b, 0);
}

/* Upper bound of the bytes of quarantine that a freed block takes. */
static uint64_t takes(size_t size)
{
	return size + size / 4 + 24576 + (size > 4096 ? 65536 : 0);
}

/* Before a block is freed: waits until that cannot push another thread's freed block out of the quarantine. */
static void makes_room(size_t size)
{
	uint64_t now = __atomic_add_fetch(&freed_bytes, takes(size), __ATOMIC_SEQ_CST);
	for (int n = 0; n < THREADS; n++) {
		uint64_t used;
		while ((used = __atomic_load_n(&uses_freed[n], __ATOMIC_SEQ_CST)) != NOTHING_FREED && now - used > quarantine && now > used)
			sched_yield();
	}
}

/* Records a freed block. */
static void is_freed(struct mine *m, unsigned char *p, size_t size, uint64_t at)
{
	struct block *old = &freed[any(m, FREED)];
	if (wrongs && p && take(old)) {
		old->p = p;
		old->size = size;
		old->at = at;
		give(old);
	}
}

static void release(struct mine *m, struct block *b)
{
	uint64_t at = __atomic_load_n(&freed_bytes, __ATOMIC_SEQ_CST);
	makes_room(b->size);
	if (!release_badly(m, b))
		b->by == BY_MALLOC ? free(b->p) : release_new(b);
	is_freed(m, b->p, b->size, at);
	b->p = NULL;
}

static void resize(struct mine *m, struct block *b)
{
	if (b->by != BY_MALLOC)
		return;
	unsigned char *before = b->p;
	size_t had = b->size, size = some_size(m, b - blocks), same = size < had ? size : had;
	uint64_t at = __atomic_load_n(&freed_bytes, __ATOMIC_SEQ_CST);
	makes_room(had);
	unsigned char *p = (unsigned char *)realloc(b->p, size);
	if (!p && size)
		differs("no memory", b, 0);
	b->p = p;
	b->size = size;
	if (p != before)
		is_freed(m, before, had, at);
	if (!p)
		return;
	same = same < EDGE ? same : EDGE;
	look_at_all(m, b, same);
	fill(m, b, same);
}

static void text(struct mine *m, struct block *b)
{
	struct hand *h = &m->hand;
	size_t n = b->size < 200 ? b->size : 200;
	if (n == 0)
		return;
	h->n = any(m, n);
	long at = (long)(b->size - h->n - 1);
	h->p = b->p + at;
	memset(h->v, 'a', h->n);
	h->v[h->n] = 0;
	memcpy(h->p, h->v, h->n + 1);
	for (size_t i = 0; i <= h->n; i++)
		*known(b, at + (long)i) = h->v[i];
	m->made += 15;
	if (!strings(h))
		differs("strings", b, at);
}

/* ---- errors that are no accesses ---- */

static __attribute__((noinline)) void bad_free_again(struct block *b) { bad(__func__, TWICE); free(b->p); }
static __attribute__((noinline)) void bad_realloc_again(struct block *b) { bad(__func__, TWICE); if (realloc(b->p, 30)) differs(__func__, b, 0); }
static __attribute__((noinline)) void bad_free_inside(unsigned char *p) { bad(__func__, INVALID); free(p); }
static __attribute__((noinline)) void bad_realloc_inside(unsigned char *p) { bad(__func__, INVALID); if (realloc(p, 30)) abort(); }
static __attribute__((noinline)) void bad_free_elsewhere(void) { bad(__func__, INVALID); free(blocks); }
static __attribute__((noinline)) void bad_copy(unsigned char *to, unsigned char *from, size_t n) { bad(__func__, OVERLAPS); memcpy(to, from, n); }

static void call_badly(struct mine *m, struct block *b)
{
	size_t n = 2 + any(m, 100), apart = 1 + any(m, n - 1);
	switch (any(m, overlaps ? 4 : 3)) {
	case 0: return bad_free_elsewhere();
	case 1: return b->size ? bad_free_inside(b->p + 1 + any(m, b->size)) : (void)0;
	case 2: return b->size ? bad_realloc_inside(b->p + 1 + any(m, b->size)) : (void)0;
	}
	if (b->size < n + apart || b->size > 2 * EDGE)
		return;
	long at = (long)any(m, b->size - n - apart + 1);
	if (any(m, 2))
		bad_copy(b->p + at, b->p + at + apart, n);
	else
		bad_copy(b->p + at + apart, b->p + at, n);
	for (long i = at; i < at + (long)(n + apart); i++)
		*known(b, i) = *(volatile unsigned char *)(b->p + i);
}

static void use_freed(struct mine *m)
{
	struct block *b = &freed[any(m, FREED)];
	if (!take(b))
		return;
	if (b->p) {
		__atomic_store_n(&uses_freed[m->number], b->at, __ATOMIC_SEQ_CST);
		if (__atomic_load_n(&freed_bytes, __ATOMIC_SEQ_CST) - b->at < quarantine / 2)
			switch (any(m, 8)) {
			case 0: bad_free_again(b); break;
			case 1: bad_realloc_again(b); break;
			case 2: bad_delete_again(b); break;
			default: use_badly(m, b, 0);
			}
		__atomic_store_n(&uses_freed[m->number], NOTHING_FREED, __ATOMIC_SEQ_CST);
	}
	give(b);
}

/* ---- the whole ---- */

static void turn(struct mine *m)
{
	long n = (long)any(m, BLOCKS);
	if (n < HUGE_ONES && any(m, 8))
		n = LARGE_ONES + (long)any(m, BLOCKS - LARGE_ONES);
	struct block *b = &blocks[n];
	if (!take(b))
		return;
	if (!b->p)
		obtain(m, b);
	if (b->p) {
		for (int i = 0; i < 30; i++)
			use_well(m, b);
		if (any(m, 8) == 0)
			text(m, b);
		if (any(m, 1000) < wrongs)
			any(m, 8) ? use_badly(m, b, 1) : call_badly(m, b);
		switch (any(m, 6)) {
		case 0: case 1: release(m, b); break;
		case 2: resize(m, b); break;
		}
	}
	give(b);
	if (any(m, 1000) < wrongs)
		use_freed(m);
}

static struct mine mine[THREADS];
static char stacks[THREADS][1 << 16];

/* Data of the signal handler. */
static struct mine handlers;
static struct block handlers_block;

static void handler(int signal)
{
	(void)signal;
	if (!take(&handlers_block))
		return;
	for (int i = 0; i < 20; i++)
		use_well(&handlers, &handlers_block);
	if (any(&handlers, 100) < wrongs)
		use_badly(&handlers, &handlers_block, 1);
	give(&handlers_block);
}

/* From now on; it is the threads that they reach. */
static void begin_signals(void)
{
	struct block *b = &handlers_block;
	struct sigaction action = {};
	struct itimerval often = { { 0, 500 }, { 0, 500 } };
	handlers.random = mine[0].random + 1;
	b->size = 5000;
	b->p = (unsigned char *)malloc(b->size);
	fill(&handlers, b, 0);
	action.sa_handler = handler;
	action.sa_flags = SA_RESTART | SA_ONSTACK;
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &often, NULL);
}

static void let_signals(int how)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGALRM);
	pthread_sigmask(how, &set, NULL);
}

static void *work(void *argument)
{
	struct mine *m = (struct mine *)argument;
	/* (The thread's own stack may be in a block: push_to8.) */
	stack_t stack = {};
	stack.ss_sp = stacks[m->number];
	stack.ss_size = sizeof stacks[0];
	sigaltstack(&stack, NULL);
	let_signals(SIG_UNBLOCK);
	for (int n = 0; n < TURNS_OF_A_THREAD && m->made < m->left; n++)
		turn(m);
	let_signals(SIG_BLOCK);
	return NULL;
}

int main(int argc, char **argv)
{
	if (argc < 6)
		return 64;
	long threads = atol(argv[2]), wanted = atol(argv[3]);
	seeds = strtoul(argv[1], NULL, 0);
	wrongs = (unsigned)atol(argv[4]);
	quarantine = strtoul(argv[5], NULL, 0);
	int signals = 0;
	for (int n = 6; n < argc; n++) {
		overlaps |= strcmp(argv[n], "overlaps") == 0;
		signals |= strcmp(argv[n], "signals") == 0;
	}
	file = memfd_create("heap_model", 0);
	if (threads < 1 || threads > THREADS || file < 0 || ftruncate(file, 1 << 20))
		return 64;
	for (long n = 0; n < THREADS; n++) {
		mine[n].number = (uint64_t)n;
		mine[n].random = (seeds * THREADS + (uint64_t)n + 1) * 0x9e3779b97f4a7c15u;
		uses_freed[n] = NOTHING_FREED;
	}
	let_signals(SIG_BLOCK);
	if (signals)
		begin_signals();
	while (accesses < (uint64_t)wanted) {
		pthread_t thread[THREADS];
		for (long n = 0; n < threads; n++) {
			mine[n].made = 0;
			mine[n].left = ((uint64_t)wanted - accesses) / (uint64_t)threads + 1;
			if (threads == 1)
				work(&mine[n]);
			else if (pthread_create(&thread[n], NULL, work, &mine[n]))
				return 65;
		}
		for (long n = 0; n < threads; n++) {
			if (threads > 1)
				pthread_join(thread[n], NULL);
			accesses += mine[n].made;
		}
	}
	accesses += handlers.made;
	for (int n = 0; n < BLOCKS; n++)
		blocks[n].by == BY_MALLOC ? free(blocks[n].p) : release_new(&blocks[n]);
	for (int n = 0; n < PLACES_OF_ACCESSES; n++)
		tell(PLACES[n].name, of_accesses[n]);
	for (int n = 0; n < 32 && bad_names[n]; n++)
		tell(bad_names[n], of_bad[n]);
	char line[60];
	int n = snprintf(line, sizeof line, "accesses %lu\n", accesses);
	return write(1, line, (size_t)n) == n ? 0 : 4;
}
