/* The kernel merges large blocks with what the C library has mapped for threads, and one stack is in a block. Each thread marks
 * both ends of a block of its own, its stack and thread-local variables of many pages. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define THREADS 3
#define BYTES (5 << 20)
#define BELOW (1 << 20)
#define STACK (2 << 20)
/* More than fit between two libraries, so that one lies beside a .bss. */
#define PAGES 64
#define MARK 0x6d61726b00000000L

static volatile long zeros[1000];
static __thread volatile long own[50000];
static pthread_barrier_t begun, is_ready;

/* Memory of the program's below the last thread's stack. */
static volatile long *below;

void ready(void) {}

static void *marks(void *argument)
{
	long thread = (long)argument;
	volatile long on_stack[4096];
	volatile long *block = malloc(BYTES);

	memset((void *)block, 1, BYTES);
	pthread_barrier_wait(&begun);
	pthread_barrier_wait(&is_ready);
	block[0] = MARK + 1 + 2 * thread;
	block[BYTES / sizeof(long) - 1] = MARK + 2 + 2 * thread;
	if (thread == THREADS - 1) {
		below[0] = MARK + 3 + 2 * THREADS;
		below[BELOW / sizeof(long) - 1] = MARK + 4 + 2 * THREADS;
	}
	own[0] = own[49999] = on_stack[0] = on_stack[4095] = MARK + 200;
	return NULL;
}

int main(void)
{
	pthread_t threads[THREADS];

	pthread_barrier_init(&begun, NULL, THREADS + 1);
	pthread_barrier_init(&is_ready, NULL, THREADS + 1);
	/* The first large block lies below the first thread's variables, and the stacks below that. */
	volatile long *first = malloc(BYTES);
	below = malloc(BELOW + STACK);
	volatile long *pages[PAGES];
	for (int n = 0; n < PAGES; n++)
		pages[n] = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pthread_attr_t attributes;
	pthread_attr_init(&attributes);
	pthread_attr_setstack(&attributes, (char *)below + BELOW, STACK);
	for (long thread = 0; thread < THREADS; thread++)
		pthread_create(threads + thread, thread == THREADS - 1 ? &attributes : NULL, marks, (void *)thread);
	pthread_barrier_wait(&begun);
	ready();
	pthread_barrier_wait(&is_ready);
	first[0] = MARK + 1 + 2 * THREADS;
	first[BYTES / sizeof(long) - 1] = MARK + 2 + 2 * THREADS;
	for (int n = 0; n < PAGES; n++)
		pages[n][0] = MARK + 5 + 2 * THREADS + n;
	zeros[0] = zeros[999] = own[0] = own[49999] = MARK + 201;
	for (int thread = 0; thread < THREADS; thread++)
		pthread_join(threads[thread], NULL);
	return 0;
}
