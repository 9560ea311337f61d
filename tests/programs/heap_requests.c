// Valgrind's client requests, each error beside a twin without it. `heap_requests bad` and `heap_requests good` run all cases, `heap_requests CASE`
// one case with its error. Without arguments, it lists the cases with the error word of `ulpf check`. `heap_requests leaks` counts its lost
// blocks; `heap_requests serve` runs the cases named on standard input, a line each; `heap_requests signals` checks that requests preserve state.
// Without Valgrind's headers there are no cases.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#if !__has_include(<valgrind/memcheck.h>)
int main(void) { return 77; }
#else
#include <valgrind/memcheck.h>

#define HIDDEN __attribute__((noinline))
#define ARENA (1 << 20)
#define GAP 16

static volatile long sink;
static char *arena, *top;
static char globals[8192] __attribute__((aligned(64)));

// ---- an allocator of blocks in memory from mmap ----
static HIDDEN char *own_alloc(size_t size)
{
	if (!arena) {
		arena = top = mmap(NULL, ARENA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		VALGRIND_MAKE_MEM_NOACCESS(arena, ARENA);
	}
	char *block = top + GAP;
	top = block + (size + 15) / 16 * 16 + GAP;
	VALGRIND_MALLOCLIKE_BLOCK(block, size, GAP, 0);
	return block;
}
static HIDDEN void own_free(void *block) { VALGRIND_FREELIKE_BLOCK(block, GAP); }

// ---- a pool of cells in a block of malloc ----
struct pool {
	char *cells;
	int used;
};
#define CELL 48
#define CELLS 16
static HIDDEN struct pool *pool_new(void)
{
	struct pool *pool = malloc(sizeof *pool);
	pool->cells = malloc(CELL * CELLS);
	pool->used = 0;
	VALGRIND_MAKE_MEM_NOACCESS(pool->cells, CELL * CELLS);
	VALGRIND_CREATE_MEMPOOL(pool, 8, 0);
	return pool;
}
static HIDDEN char *pool_alloc(struct pool *pool, size_t size)
{
	char *cell = pool->cells + CELL * pool->used++ + 8;
	VALGRIND_MEMPOOL_ALLOC(pool, cell, size);
	return cell;
}
static HIDDEN void pool_free(struct pool *pool, char *cell) { VALGRIND_MEMPOOL_FREE(pool, cell); }
static HIDDEN void pool_end(struct pool *pool)
{
	VALGRIND_DESTROY_MEMPOOL(pool);
	free(pool->cells);
	free(pool);
}

// ---- the cases ----
#define CASES(X) \
	X(behind_block, "outside") X(before_block, "outside") X(freed_block, "freed") X(freed_twice, "double-free") \
	X(freed_inside, "invalid-free") X(freed_from_malloc, "mismatched-free") X(free_of_cell, "invalid-free") \
	X(resized, "outside") X(grown, "outside") X(behind_cell, "outside") X(freed_cell, "freed") X(cell_twice, "double-free") X(no_pool, "invalid-free") \
	X(destroyed_pool, "freed") X(trimmed_pool, "freed") X(moved_pool, "freed") X(changed_cell, "outside") X(closed_part, "poisoned") \
	X(closed_one_byte, "poisoned") X(closed_global, "poisoned") X(closed_for_read, "poisoned") X(closed_for_memcpy, "poisoned") X(asked, "poisoned") \
	X(closed_by_thread, "poisoned") X(lost_block, "lost") X(lost_cell, "lost")

static HIDDEN void behind_block(int bad) { char *p = own_alloc(24); p[bad ? 24 : 23] = 1; own_free(p); }
static HIDDEN void before_block(int bad) { char *p = own_alloc(24); sink = p[bad ? -1 : 0]; own_free(p); }
static HIDDEN void freed_block(int bad) { char *p = own_alloc(40); if (bad) own_free(p); p[8] = 1; if (!bad) own_free(p); }
static HIDDEN void freed_twice(int bad) { char *p = own_alloc(40); own_free(p); if (bad) own_free(p); }
static HIDDEN void freed_inside(int bad) { char *p = own_alloc(40); if (bad) own_free(p + 8); own_free(p); }
static HIDDEN void freed_from_malloc(int bad) { char *p = malloc(40); if (bad) own_free(p); free(p); }
static HIDDEN void free_of_cell(int bad) { struct pool *pool = pool_new(); char *p = pool_alloc(pool, 32); if (bad) free(p); pool_free(pool, p); pool_end(pool); }
static HIDDEN void resized(int bad) { char *p = own_alloc(64); VALGRIND_RESIZEINPLACE_BLOCK(p, 64, 32, GAP); p[bad ? 32 : 31] = 1; own_free(p); }
static HIDDEN void grown(int bad) { char *p = own_alloc(32); top += 64; VALGRIND_RESIZEINPLACE_BLOCK(p, 32, 64, GAP); p[bad ? 64 : 63] = 1; own_free(p); }
static HIDDEN void behind_cell(int bad) { struct pool *pool = pool_new(); char *p = pool_alloc(pool, 32); p[bad ? 32 : 31] = 1; pool_end(pool); }
static HIDDEN void freed_cell(int bad) { struct pool *pool = pool_new(); char *p = pool_alloc(pool, 32); if (bad) pool_free(pool, p); p[0] = 1; pool_end(pool); }
static HIDDEN void cell_twice(int bad) { struct pool *pool = pool_new(); char *p = pool_alloc(pool, 32); pool_free(pool, p); if (bad) pool_free(pool, p); pool_end(pool); }
static HIDDEN void no_pool(int bad) { struct pool *pool = pool_new(); char *p = pool_alloc(pool, 32); pool_free(bad ? (struct pool *)p : pool, p); pool_end(pool); }
static HIDDEN void destroyed_pool(int bad) { struct pool *pool = pool_new(); char *p = pool_alloc(pool, 32); p[1] = 1; if (bad) { VALGRIND_DESTROY_MEMPOOL(pool); p[2] = 1; VALGRIND_CREATE_MEMPOOL(pool, 8, 0); } pool_end(pool); }
static HIDDEN void trimmed_pool(int bad)
{
	struct pool *pool = pool_new();
	char *p = pool_alloc(pool, 32), *q = pool_alloc(pool, 32);
	VALGRIND_MEMPOOL_TRIM(pool, p, 32);
	p[0] = 1;
	if (bad)
		q[0] = 1;
	pool_end(pool);
}
static HIDDEN void moved_pool(int bad)
{
	struct pool *pool = pool_new();
	char *p = pool_alloc(pool, 32);
	VALGRIND_MOVE_MEMPOOL(pool, pool->cells);
	if (VALGRIND_MEMPOOL_EXISTS(pool) || RUNNING_ON_VALGRIND)
		sink++;
	VALGRIND_MEMPOOL_FREE(pool->cells, p);
	if (bad)
		p[0] = 1;
	VALGRIND_MOVE_MEMPOOL(pool->cells, pool);
	pool_end(pool);
}
static HIDDEN void changed_cell(int bad)
{
	struct pool *pool = pool_new();
	char *p = pool_alloc(pool, 16);
	VALGRIND_MEMPOOL_CHANGE(pool, p, p, 24);
	VALGRIND_MAKE_MEM_UNDEFINED(p, 24);
	p[bad ? 24 : 23] = 1;
	pool_end(pool);
}
static HIDDEN void closed_part(int bad)
{
	char *p = malloc(64);
	VALGRIND_MAKE_MEM_NOACCESS(p + 8, 16);
	p[7] = p[24] = 1;
	if (!bad)
		VALGRIND_MAKE_MEM_UNDEFINED(p + 8, 16);
	p[23] = 1;
	VALGRIND_MAKE_MEM_DEFINED(p, 64);
	p[8] = 2;
	free(p);
}
static HIDDEN void closed_one_byte(int bad) { char *p = malloc(64); VALGRIND_MAKE_MEM_NOACCESS(p + 13, 1); p[12] = p[14] = 1; if (bad) p[13] = 1; free(p); }
static HIDDEN void closed_global(int bad) { VALGRIND_MAKE_MEM_NOACCESS(globals + 100, 50); globals[99] = globals[150] = 1; if (bad) globals[149] = 1; VALGRIND_MAKE_MEM_DEFINED(globals + 100, 50); globals[149] = 2; }
static HIDDEN void closed_for_read(int bad)
{
	int ends[2];
	char *p = malloc(64);
	VALGRIND_MAKE_MEM_NOACCESS(p + 8, 8);
	if (pipe(ends) == 0 && write(ends[1], "0123456789abcdef", 16) == 16)
		sink = read(ends[0], p, bad ? 16 : 8);
	close(ends[0]);
	close(ends[1]);
	free(p);
}
static HIDDEN void closed_for_memcpy(int bad) { char *p = malloc(200), to[200]; memset(p, 1, 200); VALGRIND_MAKE_MEM_NOACCESS(p + 150, 40); memcpy(to, p, bad ? 200 : 150); sink = to[100]; free(p); }
static HIDDEN void asked(int bad) { char *p = malloc(64); VALGRIND_MAKE_MEM_NOACCESS(p + 40, 8); sink = VALGRIND_CHECK_MEM_IS_ADDRESSABLE(p, bad ? 64 : 40); free(p); }
static void *write_there(void *p) { *(volatile char *)p = 1; return NULL; }
static HIDDEN void closed_by_thread(int bad)
{
	pthread_t thread;
	char *p = malloc(64);
	VALGRIND_MAKE_MEM_NOACCESS(p + 8, 8);
	pthread_create(&thread, NULL, write_there, p + (bad ? 8 : 16));
	pthread_join(thread, NULL);
	free(p);
}
static HIDDEN void lost_block(int bad) { char *p = own_alloc(120); if (!bad) own_free(p); sink = (long)p & 1; }
static struct pool *kept;
static HIDDEN void lost_cell(int bad)
{
	kept = pool_new();
	char *p = pool_alloc(kept, 32);
	if (!bad)
		pool_free(kept, p);
}

static const struct {
	const char *name, *word;
	void (*run)(int);
} cases[] = {
#define CASE(name, word) {#name, word, name},
	CASES(CASE)
};
#define COUNT (sizeof cases / sizeof *cases)

// Threads that allocate, use and free, each in its own place, side by side in the same words.
static void *work(void *mine)
{
	char *own = mine;
	for (int round = 0; round < 20000; round++) {
		VALGRIND_MALLOCLIKE_BLOCK(own, 5, 0, 0);
		own[0] = own[4] = round;
		VALGRIND_FREELIKE_BLOCK(own, 0);
	}
	VALGRIND_MAKE_MEM_UNDEFINED(own, 5);
	return NULL;
}
static void in_threads(void)
{
	pthread_t threads[4];
	char *all = malloc(20);
	for (int n = 0; n < 4; n++)
		pthread_create(&threads[n], NULL, work, all + 5 * n);
	for (int n = 0; n < 4; n++)
		pthread_join(threads[n], NULL);
	memset(all, 0, 20);
	free(all);
}

// Accesses that are not checked: with error reporting disabled, to stacks, and to memory that was unmapped meanwhile.
static void harmless(void)
{
	char *p = malloc(64), local[256] = "";

	VALGRIND_MAKE_MEM_NOACCESS(p, 64);
	VALGRIND_DISABLE_ERROR_REPORTING;
	*(volatile char *)p = 1;
	VALGRIND_ENABLE_ERROR_REPORTING;
	free(p);
	p = malloc(64);
	memset(p, 0, 64);
	free(p);
	VALGRIND_MAKE_MEM_NOACCESS(local, 256);
	VALGRIND_MAKE_MEM_DEFINED(local, 256);
	sink = local[3];
	char *map = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	VALGRIND_MAKE_MEM_NOACCESS(map, 65536);
	munmap(map, 65536);
	char *again = mmap(map, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	VALGRIND_MAKE_MEM_DEFINED(again, 65536);
	memset(again, 7, 65536);
	munmap(again, 65536);
}

// A request keeps all registers but rdx, and what lies below the stack pointer, whatever signals come.
static char *shared;
static volatile int ticks;
static void tick(int number)
{
	ticks++;
	VALGRIND_MALLOCLIKE_BLOCK(shared + 64, 8, 8, 0);
	shared[64] = number;
	VALGRIND_FREELIKE_BLOCK(shared + 64, 8);
}
static HIDDEN unsigned long sum_around_a_request(void)
{
	unsigned long sum, words[6] = {0x1301, (unsigned long)shared + 16, 16, 16, 0, 0}, *request = words;
	__asm__ volatile(
		"mov %1, %%rax; mov $100, %%edx; movq $1000, -8(%%rsp); movq $2000, -128(%%rsp); mov $1, %%ebx; mov $2, %%ecx; mov $3, %%esi\n\t"
		"mov $4, %%edi; mov $5, %%r8d; mov $6, %%r9d; mov $7, %%r10d; mov $8, %%r11d; mov $9, %%r12d; mov $10, %%r13d; mov $11, %%r14d; mov $12, %%r15d\n\t"
		"rolq $3, %%rdi; rolq $13, %%rdi; rolq $61, %%rdi; rolq $51, %%rdi; xchgq %%rbx, %%rbx\n\t"
		"add %%rbx, %%rdx; add %%rcx, %%rdx; add %%rsi, %%rdx; add %%rdi, %%rdx; add %%r8, %%rdx; add %%r9, %%rdx; add %%r10, %%rdx; add %%r11, %%rdx\n\t"
		"add %%r12, %%rdx; add %%r13, %%rdx; add %%r14, %%rdx; add %%r15, %%rdx; add -8(%%rsp), %%rdx; add -128(%%rsp), %%rdx; mov %%rdx, %0"
		: "=m"(sum) : "m"(request)
		: "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "memory", "cc");
	return sum;
}
static int among_signals(void)
{
	struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART};
	struct itimerval often = {{0, 300}, {0, 300}}, never = {};
	shared = malloc(256);
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &often, NULL);
	int wrong = 0;
	for (int round = 0; round < 50000 || ticks < 20; round++) {
		wrong += sum_around_a_request() != 78 + 100 + 3000;
		VALGRIND_FREELIKE_BLOCK(shared + 16, 16);
	}
	setitimer(ITIMER_REAL, &never, NULL);
	if (wrong)
		printf("%d were wrong\n", wrong);
	// A forked child continues, whether it is checked or not.
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		wrong += sum_around_a_request() != 78 + 100 + 3000;
		VALGRIND_FREELIKE_BLOCK(shared + 16, 16);
		*(volatile char *)(shared + 20) = 1;
		_exit(wrong != 0);
	}
	waitpid(child, &wrong, 0);
	return wrong;
}

// Reads names of cases, `threads`, and `before` (blocks from before ulpf check has attached).
static int serve(void)
{
	char word[64], *before = own_alloc(50);
	struct pool *pool = pool_new();
	char *cell = pool_alloc(pool, 20);
	printf("ready %d\n", getpid());
	fflush(stdout);
	while (scanf("%63s", word) == 1 && strcmp(word, "end") != 0) {
		if (strcmp(word, "threads") == 0)
			in_threads();
		if (strcmp(word, "before") == 0) {
			pool_free(pool, cell);
			own_free(before);
			cell = pool_alloc(pool, 20);
			before = own_alloc(50);
		}
		for (unsigned n = 0; n < COUNT; n++)
			if (strcmp(word, cases[n].name) == 0)
				cases[n].run(1);
		puts("done");
		fflush(stdout);
	}
	puts("well");
	return 0;
}

// ---- counts of lost blocks ----
static HIDDEN void lose(void)
{
	for (int n = 0; n < 3; n++) {
		char **outer = malloc(40);
		*outer = malloc(100);
		sink += (long)outer & 1;
	}
}
static HIDDEN void wipe(void)
{
	volatile char room[8192];
	for (unsigned n = 0; n < sizeof room; n++)
		room[n] = 0;
}
static int leaks(void)
{
	static char *kept, *inside;
	unsigned long counts[2][8] = { 0 };
	kept = malloc(70);
	inside = malloc(90) + 10;
	lose();
	wipe();
	for (int turn = 0; turn < 2; turn++) {
		unsigned long *c = counts[turn];
		VALGRIND_COUNT_LEAKS(c[0], c[1], c[2], c[3]);
		VALGRIND_COUNT_LEAK_BLOCKS(c[4], c[5], c[6], c[7]);
		if (turn == 0)
			VALGRIND_DO_LEAK_CHECK;
	}
	for (int turn = 0; turn < 2; turn++)
		for (int n = 0; n < 8; n++)
			printf("%lu%c", counts[turn][n], n < 7 ? ' ' : '\n');
	sink += *kept + *inside;
	return 0;
}

int main(int count, char **words)
{
	if (count < 2) {
		for (unsigned n = 0; n < COUNT; n++)
			printf("%s %s\n", cases[n].name, cases[n].word);
		return 0;
	}
	if (strcmp(words[1], "serve") == 0)
		return serve();
	if (strcmp(words[1], "leaks") == 0)
		return leaks();
	if (strcmp(words[1], "signals") == 0 && among_signals() != 0)
		return 1;
	if (strcmp(words[1], "threads") == 0)
		in_threads();
	for (unsigned n = 0; n < COUNT; n++)
		if (strcmp(words[1], "bad") == 0 || strcmp(words[1], "good") == 0 || strcmp(words[1], cases[n].name) == 0)
			cases[n].run(strcmp(words[1], "good") != 0);
	if (strcmp(words[1], "good") == 0)
		harmless();
	memset(globals, 0, sizeof globals);
	puts("well");
	return 0;
}
#endif
