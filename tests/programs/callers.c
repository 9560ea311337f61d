/* Reaches one store by many call paths, and prints the callers of each. It uses the C library's own unwinder, which
 * reads the same tables. Built as distributions build programs: optimised, without frame pointers. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <execinfo.h>
#include <libgen.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

long total;
static const char *volatile way;

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

__attribute__((noinline)) void leaf(void)
{
	void *seen[32];
	int n;

	total++;
	n = backtrace(seen, 32);
	printf("%s", way);
	/* The first is in this function itself. */
	for (int i = 1; i < n; i++)
		printf(" %p", seen[i]);
	printf("\n");
}

__attribute__((noinline)) int middle(int n)
{
	char room[64];

	snprintf(room, sizeof room, "%d", n);
	leaf();
	return atoi(room);
}

__attribute__((noinline)) int deep(int n)
{
	return n ? deep(n - 1) + n : middle(n);
}

static int compare(const void *a, const void *b)
{
	leaf();
	return *(const int *)a - *(const int *)b;
}

static void *thread(void *unused)
{
	middle(1);
	return unused;
}

static void on_signal(int number)
{
	(void)number;
	leaf();
}

static void library(const char *beside)
{
	char path[4096];
	void *handle;
	void (*call)(void (*)(void));

	snprintf(path, sizeof path, "%s/libplugin.so", dirname(strdup(beside)));
	handle = dlopen(path, RTLD_NOW);
	call = handle ? (void (*)(void (*)(void)))dlsym(handle, "plugin_call") : NULL;
	if (!call)
		exit(2);
	/* Twice: at the first time ulpf has not read the library yet. */
	for (int i = 0; i < 2; i++)
		call(leaf);
	dlclose(handle);
}

/* push %rbp; mov %rsp,%rbp; call *%rdi; pop %rbp; ret */
static void generated(void)
{
	static const unsigned char code[] = {0x55, 0x48, 0x89, 0xe5, 0xff, 0xd7, 0x5d, 0xc3};
	void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	memcpy(page, code, sizeof code);
	mprotect(page, 4096, PROT_READ | PROT_EXEC);
	printf("code %p\n", page);
	for (int i = 0; i < 2; i++)
		((void (*)(void (*)(void)))page)(leaf);
	munmap(page, 4096);
}

int main(int argc, char **argv)
{
	int numbers[] = {3, 1, 2};
	pthread_t id;

	ready();
	way = "plain";
	for (int n = argc > 1 ? atoi(argv[1]) : 1; n > 0; n--)
		middle(1);
	way = "deep";
	deep(3);
	way = "sorted";
	qsort(numbers, 3, sizeof *numbers, compare);
	way = "thread";
	pthread_create(&id, NULL, thread, NULL);
	pthread_join(id, NULL);
	way = "signal";
	signal(SIGUSR1, on_signal);
	raise(SIGUSR1);
	way = "library";
	library(argv[0]);
	way = "generated";
	generated();
	return 0;
}
