/* Functions of an allocator beside malloc and free. They expect an initialised allocator, and accept each other's blocks. Each
 * is used where the program's allocator has it. */
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *find(const char *name)
{
	void *at = dlsym(RTLD_DEFAULT, name);
	if (at)
		printf("%s\n", name);
	return at;
}

static void fill(char *block, size_t size)
{
	if (!block)
		abort();
	memset(block, 1, size);
}

static void *blocks[200];
static size_t (*sallocx)(const void *, int);
static void (*sdallocx)(void *, size_t, int);

/* Where an allocator's memory lies directly above the stack of the thread. */
static void *frees(void *arg)
{
	for (int n = 0; n < 200; n++) {
		if (sallocx(blocks[n], 0) < 100)
			abort();
		sdallocx(blocks[n], 100, 0);
	}
	return arg;
}

static void *thread(void *arg)
{
	void (*call)(void) = find("MallocExtension_MarkThreadIdle");
	char *block = malloc(100);
	fill(block, 100);
	if (call)
		call();
	return block;
}

int main(void)
{
	static const char *const calls[] = { "MallocExtension_MarkThreadIdle", "MallocExtension_MarkThreadBusy",
					     "MallocExtension_ReleaseFreeMemory" };
	char *block = malloc(10);
	fill(block, 10);
	free(block);
	for (unsigned n = 0; n < sizeof calls / sizeof *calls; n++) {
		void (*call)(void) = find(calls[n]);
		if (call)
			call();
	}

	int (*property)(const char *, size_t *) = find("MallocExtension_GetNumericProperty");
	size_t value = 0;
	if (property && !property("generic.heap_size", &value))
		return 1;

	int (*ctl)(const char *, void *, size_t *, void *, size_t) = find("mallctl");
	size_t len = sizeof value;
	if (ctl && ctl("arenas.narenas", &(unsigned){ 0 }, &(size_t){ sizeof(unsigned) }, NULL, 0))
		return 2;
	if (ctl)
		ctl("thread.tcache.flush", NULL, NULL, NULL, 0);
	(void)len;

	/* Blocks of the one function for the other. */
	void *(*mallocx)(size_t, int) = find("mallocx");
	void *(*rallocx)(void *, size_t, int) = find("rallocx");
	sallocx = find("sallocx");
	sdallocx = find("sdallocx");
	void (*dallocx)(void *, int) = find("dallocx");
	if (mallocx && rallocx && sallocx && dallocx) {
		char *one = mallocx(100, 0), *other = malloc(100);
		fill(one, 100);
		fill(other, 100);
		if (sallocx(one, 0) < 100 || sallocx(other, 0) < 100)
			return 3;
		other = rallocx(other, 3000, 0);
		fill(other, 3000);
		one = realloc(one, 3000);
		fill(one, 3000);
		free(one);
		dallocx(other, 0);
		free(mallocx(50, 0));
		dallocx(malloc(50), 0);
		if (sdallocx) {
			pthread_t other;
			for (int n = 0; n < 200; n++)
				blocks[n] = mallocx(100, 0);
			pthread_create(&other, NULL, frees, NULL);
			pthread_join(other, NULL);
		}
	}

	void *(*zalloc)(size_t) = find("mi_zalloc");
	void *(*aligned)(size_t, size_t) = find("mi_malloc_aligned");
	void (*mi_free)(void *) = find("mi_free");
	void (*collect)(int) = find("mi_collect");
	if (zalloc && aligned && mi_free && collect) {
		char *one = zalloc(100), *other = aligned(100, 256);
		fill(one, 100);
		fill(other, 100);
		one = realloc(one, 3000);
		fill(one, 3000);
		free(one);
		free(other);
		mi_free(malloc(10));
		collect(1);
	}

	pthread_t worker;
	void *result;
	pthread_create(&worker, NULL, thread, NULL);
	pthread_join(worker, &result);
	free(result);
	malloc_trim(0);
	mallopt(M_MMAP_THRESHOLD, 1 << 20);
	FILE *null = fopen("/dev/null", "w");
	malloc_info(0, null);
	fclose(null);
	(void)mallinfo();
	block = strdup("well");
	puts(block);
	free(block);
	return 0;
}
