/* A small server that runs already when ulpf check attaches. Threads allocate, hand blocks on and free them as long as it
 * runs. A line on standard input is an order, and its result is a line on standard output. */
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

enum { THREADS = 4, SLOTS = 64 };

static _Atomic(char *) slots[SLOTS];
static atomic_int stop;
static atomic_ulong rounds;

/* Blocks from before ulpf check has attached. */
static char *old, *old_freed, *old_large, *old_grows;

static void *work(void *arg)
{
	unsigned seed = (unsigned)(size_t)arg * 2654435761u + 1;
	while (!stop) {
		seed = seed * 1103515245 + 12345;
		size_t size = 8 + seed / 65536 % 600;
		char *block = seed & 0x10000 ? malloc(size) : calloc(1, size);
		memset(block, (int)size, size);
		if (seed & 0x20000)
			block = realloc(block, size * 2);
		/* The next one to come by frees it. */
		free(atomic_exchange(&slots[seed / 4096 % SLOTS], block));
		rounds++;
		if (seed % 64 == 0)
			usleep(100);
	}
	return NULL;
}

__attribute__((noinline)) static void new_behind(void)
{
	char *volatile block = malloc(24);
	block[24] = 1;
	free(block);
}

__attribute__((noinline)) static int new_freed(void)
{
	char *volatile block = malloc(40);
	free(block);
	return block[4];
}

__attribute__((noinline)) static void new_twice(void)
{
	char *volatile block = malloc(40);
	free(block);
	free(block);
}

__attribute__((noinline)) static void old_behind(void)
{
	/* (The same again, so that nothing is broken.) */
	char *volatile block = old;
	block[malloc_usable_size(block)] = block[malloc_usable_size(block)];
}

__attribute__((noinline)) static int old_freed_now(void)
{
	char *volatile block = old_freed;
	free(block);
	return block[16];
}

__attribute__((noinline)) static void old_twice(void)
{
	char *volatile block = malloc(8);
	free(block);
	block = old_freed;
	free(block);
}

__attribute__((noinline)) static void harmless(void)
{
	old_grows = realloc(old_grows, 5000);
	old_grows[4999] = old_grows[0];
	free(old_large);
	old_large = malloc(1 << 20);
	memset(old_large, 1, 1 << 20);
	char *text = strdup("what nobody complains of");
	printf("(%zu %c)\n", strlen(text), old_grows[0]);
	free(text);
}

/* As they end, the C library frees what it has kept for them. */
static void *short_one(void *arg)
{
	free(arg);
	return malloc(100);
}

static void some_threads(void)
{
	for (int n = 0; n < 8; n++) {
		pthread_t thread;
		void *block;
		pthread_create(&thread, NULL, short_one, malloc(50));
		pthread_join(thread, &block);
		free(block);
	}
}

/* A block that is allocated under one check, and used under another. */
static char *kept;

__attribute__((noinline)) static void keep(void) { kept = malloc(24); }
__attribute__((noinline)) static int kept_behind(void) { return ((char *volatile)kept)[24]; }

__attribute__((noinline)) static void keep_freed(void)
{
	keep();
	free(kept);
}

__attribute__((noinline)) static int kept_freed(void) { return ((char *volatile)kept)[4]; }

/* A thread that waits in the midst of malloc, until it is released. */
static pthread_t holder;
static atomic_int held, released;
/* Instructions of a call of malloc that are in no file; which of them the thread waits before; those that it has met. */
static volatile int foreign, wanted, met;

static int is_foreign(void *pc)
{
	Dl_info info;
	return !dladdr(pc, &info);
}

static void on_step(int signal, siginfo_t *info, void *context)
{
	greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
	(void)signal, (void)info;
	if (!is_foreign((void *)registers[REG_RIP]) || ++met != wanted)
		return;
	held = 1;
	while (!released)
		usleep(100);
	registers[REG_EFL] &= ~0x100;
}

/* The call, in single steps. */
__attribute__((noinline)) static void *stepped_malloc(size_t size)
{
	met = 0;
	__asm__ volatile("pushfq; orq $0x100,(%%rsp); popfq" ::: "memory", "cc");
	void *block = malloc(size);
	__asm__ volatile("pushfq; andq $~0x100,(%%rsp); popfq" ::: "memory", "cc");
	return block;
}

static void *hold(void *arg)
{
	struct sigaction action = { .sa_sigaction = on_step, .sa_flags = SA_SIGINFO };
	sigaction(SIGTRAP, &action, NULL);
	/* glibc's cache has a block for it, freed before. */
	free(malloc(300));
	wanted = -1;
	free(stepped_malloc(300));
	foreign = met;
	wanted = 1 + (foreign - 1) * atoi(arg) / 4;
	char *block = stepped_malloc(300);
	memset(block, 7, 300);
	free(block);
	return NULL;
}

static void begin_hold(const char *quarter)
{
	held = released = 0;
	pthread_create(&holder, NULL, hold, (void *)quarter);
	while (!held)
		usleep(100);
}

static void release(void)
{
	released = 1;
	pthread_join(holder, NULL);
	printf("(%d)\n", foreign);
}

/* Damages the size of a block, which glibc keeps before it. */
static void break_heap(void) { ((size_t *)old)[-1] ^= 0x7008; }

static const struct {
	const char *name;
	void (*does)(void);
} orders[] = {
	{ "new_behind", new_behind },
	{ "new_freed", (void (*)(void))new_freed },
	{ "new_twice", new_twice },
	{ "old_behind", old_behind },
	{ "old_freed", (void (*)(void))old_freed_now },
	{ "old_twice", old_twice },
	{ "harmless", harmless },
	{ "threads", some_threads },
	{ "release", release },
	{ "keep", keep },
	{ "kept_behind", (void (*)(void))kept_behind },
	{ "keep_freed", keep_freed },
	{ "kept_freed", (void (*)(void))kept_freed },
	{ "break", break_heap },
	{ "mend", break_heap },
};

/* Takes all address space above what ulpf keeps for itself where addresses are not random, and the upper part of that. */
static void crowd(void)
{
	const size_t len = 33UL << 30;
	char *at;
	do
		at = mmap(NULL, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	while (at != MAP_FAILED && at > (char *)0x7eb000000000);
}

int main(int argc, char **argv)
{
	pthread_t threads[THREADS];
	if (argc > 1 && !strcmp(argv[1], "crowded"))
		crowd();
	for (size_t n = 0; n < THREADS; n++)
		pthread_create(&threads[n], NULL, work, (void *)n);
	old = malloc(40);
	old_freed = malloc(200);
	old_large = malloc(1 << 20);
	old_grows = malloc(100);
	memset(old_grows, 'g', 100);
	printf("ready %d\n", getpid());
	fflush(stdout);
	char line[64];
	while (fgets(line, sizeof line, stdin)) {
		line[strcspn(line, "\n")] = 0;
		if (!strcmp(line, "end"))
			break;
		if (!strncmp(line, "hold ", 5))
			begin_hold(line + 5);
		for (size_t n = 0; n < sizeof orders / sizeof *orders; n++)
			if (!strcmp(line, orders[n].name))
				orders[n].does();
		/* Every thread is still at work. */
		unsigned long before = rounds;
		while (rounds < before + 1000)
			usleep(1000);
		printf("done %s\n", line);
		fflush(stdout);
	}
	stop = 1;
	for (int n = 0; n < THREADS; n++)
		pthread_join(threads[n], NULL);
	for (int n = 0; n < SLOTS; n++)
		free(slots[n]);
	puts("well");
	return 0;
}
