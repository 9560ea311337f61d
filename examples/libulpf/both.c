/*
 * A program that watches itself while another watcher runs beside the library. It prints the hits of its own
 * handler. The other watcher must report the same hits.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <sys/mman.h>
#include <unistd.h>
#include <ulpf.h>

struct page {
	volatile long seen;      /* the library's */
	volatile long shared;    /* watched by both */
	volatile long other;     /* the other's alone: on a page that the library guards */
	volatile long beside;
	char buffer[64];
} __attribute__((aligned(4096)));

struct page page, far; /* nothing on `far` is the library's */
volatile long *heap;
static volatile int hits, silent;
static int quiet;

static void on_hit(const struct ulpf_hit *hit, void *name)
{
	__atomic_fetch_add(&hits, 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&silent, hit->silent, __ATOMIC_RELAXED);
	if (quiet)
		return;
	long old = 0, new = 0;
	memcpy(&old, hit->old_value, hit->value_len < 8 ? hit->value_len : 8);
	memcpy(&new, hit->new_value, hit->value_len < 8 ? hit->value_len : 8);
	printf("%s %ld %ld\n", (const char *)name, old, new);
}

static int watch(void *addr, size_t len, const char *name)
{
	struct ulpf_watchpoint w = ULPF_WATCHPOINT_INIT;
	w.addr = addr;
	w.len = len;
	w.access = ULPF_WRITE;
	w.handler = on_hit;
	w.data = (void *)name;
	long id;
	if (ulpf_insert(&w, 1, &id) < 0) {
		fprintf(stderr, "%s: %s\n", name, ulpf_error());
		exit(1);
	}
	return id;
}

__attribute__((noinline)) void ready(void) { __asm__ volatile(""); }

/* In one instruction: a page of the library's to one of the other's, and back. */
__attribute__((noinline)) static void carry(void *to, const void *from, size_t n)
{
	__asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(n)::"memory");
}

static void *worker(void *times)
{
	for (long i = 1; i <= (long)times; i++) {
		__atomic_fetch_add(&page.shared, 1, __ATOMIC_RELAXED);
		__atomic_fetch_add(&far.shared, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

static void stores(void)
{
	page.shared = 1;
	page.shared = 1;
	page.other = 2;
	page.seen = 3;
	far.shared = 4;
	*heap = 5;
	page.shared += 5;
	carry((void *)&page.shared, (void *)&far.shared, 8);
	carry((void *)&far.shared, (void *)&page.seen, 8);
	int pipes[2];
	if (pipe(pipes) || write(pipes[1], "abcdefgh", 8) != 8 || read(pipes[0], (void *)&page.shared, 8) != 8)
		exit(1);
	page.shared = 0;
}

static volatile sig_atomic_t traps;
static void *volatile trapped[16];

static void on_trap(int signal, siginfo_t *info, void *context)
{
	(void)signal;
	(void)info;
	if (traps < 16)
		trapped[traps] = (void *)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
	traps++;
}

/* A program that steps itself: where the traps come, other watchers must not change. */
static void steps(void)
{
	struct sigaction action = { .sa_sigaction = on_trap, .sa_flags = SA_SIGINFO };
	sigaction(SIGTRAP, &action, NULL);
	__asm__ volatile("sub $128, %%rsp\n pushfq\n orq $0x100, (%%rsp)\n popfq\n"
	                 "movq $1, %0\n incq %1\n movq $2, %0\n"
	                 "pushfq\n andq $~0x100, (%%rsp)\n popfq\n add $128, %%rsp"
	                 : "=m"(far.shared), "+m"(far.seen)::"memory", "cc");
	printf("%d traps:", (int)traps);
	for (int i = 1; i < traps && i < 16; i++)
		printf(" %ld", (long)trapped[i] - (long)trapped[0]);
	printf("\n");
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "stores";
	heap = calloc(1, 64);
	setvbuf(stdout, NULL, _IONBF, 0);
	if (!strcmp(how, "wait")) {
		watch((void *)&page.shared, 8, "shared");
		puts("waiting");
		while (!page.beside)
			usleep(1000);
		ready();
		stores();
	} else if (!strcmp(how, "crash")) {
		ready();
		watch((void *)&page.shared, 8, "shared");
		page.shared = 1;
		*(volatile char *)mmap(NULL, 1, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) = 1;
	} else if (!strcmp(how, "steps")) {
		ready();
		steps();
	} else if (!strcmp(how, "threads")) {
		pthread_t threads[4];
		quiet = 1;
		ready();
		watch((void *)&page.shared, 8, "shared");
		for (int i = 0; i < 4; i++)
			pthread_create(&threads[i], NULL, worker, (void *)500L);
		/* Guards come and go meanwhile. */
		for (int i = 0; i < 20; i++) {
			int id = watch((void *)&page.seen, 8, "seen");
			ulpf_delete_watchpoint(id);
		}
		for (int i = 0; i < 4; i++)
			pthread_join(threads[i], NULL);
		printf("shared %ld, hits %d\n", page.shared, hits);
	} else {
		ready();
		watch((void *)&page.shared, 8, "shared");
		watch((void *)&page.seen, 8, "seen");
		watch((void *)heap, 8, "heap");
		stores();
	}
	printf("both: done\n");
	return 0;
}
