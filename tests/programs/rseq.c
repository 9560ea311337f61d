/* Restartable sequences (rseq(2)): counters, lists and buffers of each processor, changed by many threads without a locked
 * instruction. rseq WAY WHAT [TIMES]: `own` registers areas of its own (GLIBC_TUNABLES=glibc.pthread.rseq=0), `libc` uses
 * the C library's. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/rseq.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/rseq.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS    4
#define PROCESSORS 64
#define NODES      8
#define SIGNATURE  RSEQ_SIG

struct node {
	struct node *next;
	long taken;
};

/* On pages of their own, and beside each other. */
struct {
	long counts[PROCESSORS];
	struct node *lists[PROCESSORS];
	long drafts[PROCESSORS];
} shared __attribute__((aligned(4096)));
struct {
	long beside;
	struct rseq area __attribute__((aligned(32)));
	long behind;
} first __attribute__((aligned(4096)));
static __thread struct rseq own_area;
static __thread struct rseq *area;
static long times = 1000;
static int own;
static volatile sig_atomic_t signals;
static struct node nodes[NODES];

void ready(void)
{
}

static int known_area(struct rseq *at, unsigned signature, int flags)
{
	return syscall(SYS_rseq, at, sizeof *at, flags, signature);
}

static int enter(int main_thread)
{
	if (!own) {
		area = (struct rseq *)((char *)__builtin_thread_pointer() + __rseq_offset);
		return __rseq_size == 0 ? -1 : 0;
	}
	area = main_thread ? &first.area : &own_area;
	return known_area(area, SIGNATURE, 0);
}

static int processor(void)
{
	return *(volatile unsigned *)&area->cpu_id_start;
}

/* Begins a sequence; `commit` is its last instruction. */
#define BEGIN                                                  \
	".pushsection __rseq_cs, \"aw\"\n"                     \
	".balign 32\n"                                         \
	"3: .long 0, 0\n"                                      \
	".quad 1f, 2f - 1f, 4f\n"                              \
	".popsection\n"                                        \
	"leaq 3b(%%rip), %%rax\n"                              \
	"movq %%rax, %c[current](%[area])\n"                   \
	"1:\n"                                                 \
	"cmpl %[cpu], %c[id](%[area])\n"                       \
	"jnz 4f\n"
#define END                                                    \
	"2:\n"                                                 \
	".pushsection __rseq_failure, \"ax\"\n"                \
	".byte 0x0f, 0xb9, 0x3d\n"                             \
	".long %c[signature]\n"                                \
	"4: jmp %l[aborted]\n"                                 \
	".popsection\n"
#define USUAL [area] "r"(area), [cpu] "r"(cpu), [signature] "i"(SIGNATURE),                     \
	      [current] "i"(offsetof(struct rseq, rseq_cs)), [id] "i"(offsetof(struct rseq, cpu_id))

static int add(long *count, int cpu)
{
	__asm__ goto(BEGIN "movq (%[count]), %%rcx\n"
			   "addq $1, %%rcx\n"
			   "movq %%rcx, (%[count])\n" END
		     :: USUAL, [count] "r"(count) : "rax", "rcx", "memory", "cc" : aborted);
	return 1;
aborted:
	return 0;
}

/* Two stores: the first may be made again and again. */
static int draft_and_add(long *draft, long *count, int cpu)
{
	__asm__ goto(BEGIN "movq (%[count]), %%rcx\n"
			   "addq $1, %%rcx\n"
			   "movq %%rcx, (%[draft])\n"
			   "movq (%[draft]), %%rcx\n"
			   "movq %%rcx, (%[count])\n" END
		     :: USUAL, [count] "r"(count), [draft] "r"(draft) : "rax", "rcx", "memory", "cc" : aborted);
	return 1;
aborted:
	return 0;
}

static int push(struct node **list, struct node *node, int cpu)
{
	__asm__ goto(BEGIN "movq (%[list]), %%rcx\n"
			   "movq %%rcx, (%[node])\n"
			   "movq %[node], (%[list])\n" END
		     :: USUAL, [list] "r"(list), [node] "r"(node) : "rax", "rcx", "memory", "cc" : aborted);
	return 1;
aborted:
	return 0;
}

static int pop(struct node **list, struct node **node, int cpu)
{
	__asm__ goto(BEGIN "movq (%[list]), %%rcx\n"
			   "movq %%rcx, (%[node])\n"
			   "testq %%rcx, %%rcx\n"
			   "jz 2f\n"
			   "movq (%%rcx), %%rcx\n"
			   "movq %%rcx, (%[list])\n" END
		     :: USUAL, [list] "r"(list), [node] "r"(node) : "rax", "rcx", "memory", "cc" : aborted);
	return 1;
aborted:
	return 0;
}

static void *adds(void *main_thread)
{
	if (!main_thread && enter(0))
		return "no area";
	for (long n = 0; n < times; n++)
		for (;;) {
			int cpu = processor();
			if (add(&shared.counts[cpu], cpu))
				break;
		}
	return NULL;
}

static void *drafts(void *main_thread)
{
	if (!main_thread && enter(0))
		return "no area";
	for (long n = 0; n < times; n++)
		for (;;) {
			int cpu = processor();
			if (draft_and_add(&shared.drafts[cpu], &shared.counts[cpu], cpu))
				break;
			if (n % 16 == 0)
				sched_yield();
		}
	return NULL;
}

static void *takes(void *main_thread)
{
	if (!main_thread && enter(0))
		return "no area";
	for (long n = 0; n < times;) {
		int cpu = processor();
		struct node *node = NULL;
		if (!pop(&shared.lists[cpu], &node, cpu))
			continue;
		if (!node) {
			sched_yield();
			n++;
			continue;
		}
		node->taken++;
		n++;
		do
			cpu = processor();
		while (!push(&shared.lists[cpu], node, cpu));
	}
	return NULL;
}

static void *unregisters(void *main_thread)
{
	if (!main_thread && enter(0))
		return "no area";
	for (long n = 0; n < times; n++) {
		if (own && n % 50 == 7) {
			if (known_area(area, SIGNATURE, RSEQ_FLAG_UNREGISTER) || (int)area->cpu_id != -1)
				return "not unregistered";
			if (enter(main_thread != NULL))
				return "not registered again";
		}
		for (;;) {
			int cpu = processor();
			if (add(&shared.counts[cpu], cpu))
				break;
		}
	}
	return NULL;
}

static void *protects(void *main_thread)
{
	if (!main_thread && enter(0))
		return "no area";
	for (long n = 0; n < times; n++) {
		if (n % 20 == 9 && mprotect((void *)((uintptr_t)area & ~4095ul), 4096, PROT_READ | PROT_WRITE))
			return "not protected";
		for (;;) {
			int cpu = processor();
			if (add(&shared.counts[cpu], cpu))
				break;
		}
	}
	return NULL;
}

static long sum(const long *counts)
{
	long all = 0;
	for (int n = 0; n < PROCESSORS; n++)
		all += counts[n];
	return all;
}

static int run_all(void *(*body)(void *))
{
	pthread_t threads[THREADS];
	void *said = NULL;
	for (int n = 1; n < THREADS; n++)
		pthread_create(&threads[n], NULL, body, NULL);
	void *mine = body((void *)1);
	if (mine)
		printf("%s\n", (char *)mine);
	for (int n = 1; n < THREADS; n++) {
		pthread_join(threads[n], &said);
		if (said)
			printf("%s\n", (char *)said);
	}
	return 0;
}

static void on_signal(int number)
{
	(void)number;
	signals++;
	for (;;) {
		int cpu = processor();
		if (add(&shared.drafts[cpu], cpu))
			break;
	}
}

static void storm(void)
{
	/* Longer than a sequence takes that is watched: else none would come to its end. */
	struct itimerval every = {{0, 5000}, {0, 5000}}, never = {{0, 0}, {0, 0}};
	signal(SIGALRM, on_signal);
	setitimer(ITIMER_REAL, &every, NULL);
	adds((void *)1);
	while (signals < 20)
		;
	setitimer(ITIMER_REAL, &never, NULL);
	printf("signals are counted: %s\n", sum(shared.drafts) == signals ? "yes" : "no");
}

static void forks(void)
{
	int status = 0;
	adds((void *)1);
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		adds((void *)1);
		printf("child: %ld, known: %d\n", sum(shared.counts), (int)area->cpu_id >= 0);
		fflush(stdout);
		_exit(0);
	}
	waitpid(child, &status, 0);
	adds((void *)1);
	printf("parent: %ld, child: %d\n", sum(shared.counts), status);
}

static void errors(void)
{
	static struct rseq other __attribute__((aligned(32)));
	const struct {
		struct rseq *at;
		unsigned signature;
		int flags;
	} calls[] = {
		{area, SIGNATURE + 1, RSEQ_FLAG_UNREGISTER}, {area, SIGNATURE + 1, 0}, {area, SIGNATURE, 0}, {&other, SIGNATURE, 0},
		{&other, SIGNATURE, RSEQ_FLAG_UNREGISTER}, {area, SIGNATURE, 2}, {NULL, SIGNATURE, 0}, {area, SIGNATURE, RSEQ_FLAG_UNREGISTER},
		{area, SIGNATURE, RSEQ_FLAG_UNREGISTER}, {(struct rseq *)((char *)area + 4), SIGNATURE, 0}, {area, SIGNATURE, 0},
	};
	for (unsigned n = 0; n < sizeof calls / sizeof *calls; n++)
		printf("%u: %s\n", n, known_area(calls[n].at, calls[n].signature, calls[n].flags) ? strerror(errno) : "done");
}

int main(int argc, char **argv)
{
	const char *what = argc > 2 ? argv[2] : "";
	own = argc > 1 && !strcmp(argv[1], "own");
	times = argc > 3 ? atol(argv[3]) : times;
	if (enter(1)) {
		printf("rseq: not registered\n");
		return 2;
	}
	ready();
	if (!strcmp(what, "adds"))
		run_all(adds);
	else if (!strcmp(what, "drafts"))
		run_all(drafts);
	else if (!strcmp(what, "unregisters"))
		run_all(unregisters);
	else if (!strcmp(what, "protects"))
		run_all(protects);
	else if (!strcmp(what, "takes")) {
		for (int n = 0; n < NODES; n++) {
			nodes[n].next = shared.lists[n % 2];
			shared.lists[n % 2] = &nodes[n];
		}
		run_all(takes);
		int left = 0;
		for (int cpu = 0; cpu < PROCESSORS; cpu++)
			for (struct node *n = shared.lists[cpu]; n && left <= NODES; n = n->next)
				left++;
		printf("nodes: %d\n", left);
	} else if (!strcmp(what, "storm"))
		storm();
	else if (!strcmp(what, "forks"))
		forks();
	else if (!strcmp(what, "errors"))
		errors();
	else if (!strcmp(what, "waits")) {
		char byte;
		printf("waits\n");
		fflush(stdout);
		while (read(0, &byte, 1) == 1) {
			run_all(adds);
			printf("again\n");
			fflush(stdout);
		}
		if (own)
			printf("unregistered: %d\n", known_area(area, SIGNATURE, RSEQ_FLAG_UNREGISTER));
	}
	first.beside++;
	first.behind++;
	printf("counts: %ld\n", sum(shared.counts));
	printf("known: %d\n", (int)area->cpu_id >= 0);
	return 0;
}
