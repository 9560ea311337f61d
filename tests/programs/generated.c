/* Generates code, runs it, changes it and runs it again, in several threads. The memory stays writable, or is switched by
 * mprotect. Changes come by stores, the kernel, other threads while it runs, and a forked child. The program reads back what
 * runtimes read of their code. Prints the number of its code's stores to `cells`; `generated THREADS ROUNDS RUNS`. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST 8
#define CELLS 512
#define CODE 8192
#define FUNCTIONS 6

typedef uint64_t function(uint64_t *cell, uint64_t value, uint64_t times);

/* The watched memory: only generated code writes there. */
uint64_t cells[MOST + 1][CELLS] __attribute__((aligned(4096)));

static long rounds, runs = 200;
static unsigned char *shared_code;
static long wrong;

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

static void expect(int right, const char *what, long round)
{
	if (!right && !__atomic_fetch_add(&wrong, 1, __ATOMIC_SEQ_CST))
		printf("wrong: %s in round %ld\n", what, round);
}

/* Runtimes whose code may be patched are known by their files. */
static void be_a_known_runtime(void)
{
	int file = memfd_create("/libguile-generated", 0);

	if (file < 0 || ftruncate(file, 4096) || mmap(0, 4096, PROT_READ, MAP_PRIVATE, file, 0) == MAP_FAILED)
		exit(3);
}

struct template {
	unsigned char code[40];
	size_t size;
	/* Where a constant of four or eight bytes stands that the function returns. */
	size_t constant, constant_size;
	/* Stores for each call, to one cell or more. */
	int stores, adds;
};

static const struct template templates[FUNCTIONS] = {
	/* mov $n,%eax; mov %rsi,(%rdi); add $8,%rdi; ret */
	{{0xb8, 1, 2, 3, 4, 0x48, 0x89, 0x37, 0x48, 0x83, 0xc7, 0x08, 0xc3}, 13, 1, 4, 1, 0},
	/* add %rsi,(%rdi); movabs $n,%rax; ret */
	{{0x48, 0x01, 0x37, 0x48, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8, 0xc3}, 14, 5, 8, 1, 1},
	/* mov %rsi,(%rdi); jmp 1f; ud2; 1: mov $n,%eax; ret */
	{{0x48, 0x89, 0x37, 0xe9, 2, 0, 0, 0, 0x0f, 0x0b, 0xb8, 1, 2, 3, 4, 0xc3}, 16, 11, 4, 1, 0},
	/* mov $n,%eax; 1: add %rsi,(%rdi); dec %edx; jnz 1b; ret */
	{{0xb8, 1, 2, 3, 4, 0x48, 0x01, 0x37, 0xff, 0xca, 0x75, 0xf9, 0xc3}, 13, 1, 4, 0, 1},
	/* mov %esi,(%rdi); mov %esi,4(%rdi); mov $n,%eax; ret */
	{{0x89, 0x37, 0x89, 0x77, 0x04, 0xb8, 1, 2, 3, 4, 0xc3}, 11, 6, 4, 2, 0},
	/* mov $n,%eax; cmp $9,%esi; je 1f; mov %rsi,(%rdi); 1: test %esi,%esi; ret */
	{{0xb8, 1, 2, 3, 4, 0x83, 0xfe, 0x09, 0x74, 0x03, 0x48, 0x89, 0x37, 0x85, 0xf6, 0xc3}, 16, 1, 4, 1, 0},
};

struct made {
	const struct template *of;
	unsigned char *at;
	uint64_t constant;
	int is_short;
};

static void put_constant(struct made *m, unsigned char *at, uint64_t value)
{
	m->constant = m->of->constant_size == 8 ? value * 0x100000001 : value;
	memcpy(at + m->of->constant, &m->constant, m->of->constant_size);
}

/* Has the kernel write the code, as a program does that reads code from a file. */
static void put_by_kernel(unsigned char *to, const unsigned char *from, size_t n)
{
	int ends[2];

	if (pipe(ends) || write(ends[1], from, n) != (ssize_t)n || read(ends[0], to, n) != (ssize_t)n)
		exit(4);
	close(ends[0]);
	close(ends[1]);
}

static void make(struct made *m, unsigned char *at, long round, int kernel)
{
	unsigned char code[40];

	m->at = at;
	m->is_short = 0;
	memcpy(code, m->of->code, m->of->size);
	put_constant(m, code, round * 3 + 1);
	if (kernel)
		put_by_kernel(at, code, m->of->size);
	else
		memcpy(at, code, m->of->size);
}

/* Checks that code reads back as written: its jump and its constant. */
static void read_back(const struct made *m, long round)
{
	uint64_t constant = 0;

	memcpy(&constant, m->at + m->of->constant, m->of->constant_size);
	expect(constant == m->constant, "a constant that is read", round);
	if (m->of == &templates[2])
		expect(!memcmp(m->at + 3, m->of->code + 3, 5), "a jump that is read", round);
}

static long run(const struct made *m, uint64_t *mine, long round)
{
	function *f = (function *)m->at;
	long stores = 0;

	for (long n = 0; n < runs; n++) {
		uint64_t *cell = mine + (n * 7 + round) % (CELLS - 1), value = n + 10, was = *cell, times = 1 + n % 3;
		uint64_t returned = f(cell, value, times), is = *cell;

		expect(returned == m->constant, "what it returns", round);
		if (m->is_short)
			expect((uint32_t)is == (uint32_t)value && is >> 32 == was >> 32, "a short store", round);
		else if (m->of == &templates[4])
			expect(is == (value << 32 | value), "two stores", round);
		else if (m->of == &templates[3])
			expect(is == was + value * times, "a loop", round);
		else
			expect(is == (m->of->adds ? was + value : value), "a store", round);
		stores += m->of->stores ? m->of->stores : (long)times;
	}
	return stores;
}

static void *work(void *argument)
{
	long me = (long)argument, stores = 0;
	int switched = me % 2, all = PROT_READ | PROT_WRITE | PROT_EXEC;
	unsigned char *code = mmap(0, CODE, all, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct made made[FUNCTIONS];

	for (long round = 0; round < rounds; round++) {
		/* The last one lies across two pages. */
		if (switched && mprotect(code, CODE, PROT_READ | PROT_WRITE))
			exit(5);
		for (int n = 0; n < FUNCTIONS; n++) {
			made[n].of = &templates[n];
			make(&made[n], code + (n == FUNCTIONS - 1 ? 4090 : n * 64 + (round / 8) % 16), round, round % 8 == 5);
		}
		if (switched && mprotect(code, CODE, PROT_READ | PROT_EXEC))
			exit(5);
		for (int n = 0; n < FUNCTIONS; n++)
			stores += run(&made[n], cells[me], round);
		for (int n = 0; n < FUNCTIONS; n++)
			read_back(&made[n], round);
		if (!switched) {
			/* One of them returns something else, and another one stores half as much. */
			put_constant(&made[1], made[1].at, round + 77);
			stores += run(&made[1], cells[me], round);
			memcpy(made[0].at + 5, "\x90\x89\x37", 3);
			made[0].is_short = 1;
			stores += run(&made[0], cells[me], round);
			read_back(&made[0], round);
		}
		if (round % 16 == 15 && madvise(code, CODE, MADV_DONTNEED))
			exit(6);
	}
	return (void *)stores;
}

/* Runs code while another thread changes its constant of eight bytes. */
static void *run_shared(void *argument)
{
	function *f = (function *)shared_code;
	long times = rounds * runs;

	for (long n = 0; n < times; n++) {
		uint64_t returned = f(&cells[MOST][(long)argument], n, 1);

		expect((returned & 0xffff) == (returned >> 48), "a constant that changes", n);
	}
	return (void *)times;
}

static void change_shared(void)
{
	uint64_t *constant = (uint64_t *)(shared_code + 8);

	for (uint64_t n = 0; n < (uint64_t)rounds * 4; n++) {
		uint64_t value = n % 1000 * 0x0001000100010001;

		__atomic_store_n(constant, value, __ATOMIC_SEQ_CST);
		expect(__atomic_load_n(constant, __ATOMIC_SEQ_CST) == value, "a constant that was changed", n);
		usleep(n % 50 * 10);
	}
}

/* A forked child has the code as it was, and may change it. */
static int child(void)
{
	function *f = (function *)shared_code;
	uint64_t cell = 0, constant = 0x0005000500050005;
	pid_t pid = fork();
	int status;

	if (!pid) {
		unsigned char was[6] = {0x48, 0x89, 0x37, 0x90, 0x90, 0x90};

		if (memcmp(shared_code, was, 6))
			_exit(1);
		memcpy(shared_code + 8, &constant, 8);
		_exit(f(&cell, 3, 1) == constant && cell == 3 ? 0 : 2);
	}
	return pid < 0 || waitpid(pid, &status, 0) != pid || status;
}

int main(int argc, char **argv)
{
	long threads = argc > 1 ? atol(argv[1]) : 4, stores = 0;
	pthread_t all[MOST], racing[2];
	void *result;

	rounds = argc > 2 ? atol(argv[2]) : 64;
	runs = argc > 3 ? atol(argv[3]) : runs;
	if (threads < 1 || threads > MOST)
		return 2;
	be_a_known_runtime();
	shared_code = mmap(0, CODE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	/* mov %rsi,(%rdi); nop; nop; nop; movabs $0,%rax; ret */
	memcpy(shared_code, "\x48\x89\x37\x90\x90\x90\x48\xb8\0\0\0\0\0\0\0\0\xc3", 17);
	ready();
	if (threads == 1) {
		stores = (long)work(0);
	} else {
		for (long n = 0; n < threads; n++)
			pthread_create(&all[n], 0, work, (void *)n);
		for (long n = 0; n < 2; n++)
			pthread_create(&racing[n], 0, run_shared, (void *)n);
		change_shared();
		for (long n = 0; n < threads; n++, stores += (long)result)
			pthread_join(all[n], &result);
		for (long n = 0; n < 2; n++, stores += (long)result)
			pthread_join(racing[n], &result);
	}
	for (long n = 0; n < 200; n++, stores++)
		((function *)shared_code)(&cells[MOST][n], n, 1);
	if (threads > 1)
		expect(!child(), "a child", 0);
	printf("%ld stores\n", stores);
	return wrong != 0;
}
