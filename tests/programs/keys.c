/* Memory protection keys (pkeys(7)): what the program, the kernel on its behalf and its signal handlers may touch.
   77: this machine has none. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

long counter;
char *keyed;
static sigjmp_buf back;
static volatile int signo, code, their_key;
static volatile unsigned in_handler;

static unsigned pkru(void)
{
	unsigned value, zero;
	__asm__ volatile("rdpkru" : "=a"(value), "=d"(zero) : "c"(0));
	return value;
}

static void set_pkru(unsigned value)
{
	__asm__ volatile("wrpkru" : : "a"(value), "c"(0), "d"(0) : "memory");
}

static void caught(int s, siginfo_t *info, void *context)
{
	(void)context;
	in_handler = pkru();
	signo = s;
	code = info->si_code;
	their_key = info->si_pkey;
	siglongjmp(back, 1);
}

static void quiet(int s)
{
	(void)s;
	in_handler = pkru();
}

/* A jump out of a handler keeps the handler's rights. */
#define TRY(what, name)                                                                                           \
	do {                                                                                                      \
		unsigned rights = pkru();                                                                         \
		if (!sigsetjmp(back, 1)) {                                                                        \
			what;                                                                                     \
			printf("%s: made\n", name);                                                               \
		} else {                                                                                          \
			set_pkru(rights);                                                                         \
			printf("%s: signal %d, code %d, key %d, the handler's rights %x\n", name, signo, code,    \
			       code == SEGV_PKUERR ? their_key : 0, in_handler);                                  \
		}                                                                                                 \
	} while (0)

static void *thread(void *p)
{
	printf("a thread begins with %x\n", pkru());
	*(volatile char *)p = 5;
	return NULL;
}

static void *run(void *(*body)(void *), void *p)
{
	pthread_t t;
	pthread_create(&t, NULL, body, p);
	pthread_join(t, NULL);
	return NULL;
}

static void call(const char *name, ssize_t result)
{
	printf("%s: %zd%s%s\n", name, result, result < 0 ? ", " : "", result < 0 ? strerror(errno) : "");
}

static char *pages(size_t n)
{
	return mmap(NULL, n * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

int main(void)
{
	struct sigaction action = {.sa_sigaction = caught, .sa_flags = SA_SIGINFO};
	sigaction(SIGSEGV, &action, NULL);
	signal(SIGUSR1, quiet);
	int key = pkey_alloc(0, 0);
	if (key < 0)
		return 77;
	pkey_free(key);
	printf("at first %x\n", pkru());
	key = pkey_alloc(0, 0);
	printf("key %d, rights %x\n", key, pkru());
	char *p = pages(3);
	call("pkey_mprotect", pkey_mprotect(p, 8192, PROT_READ | PROT_WRITE, key));
	keyed = p;
	memset(p, 1, 8192);
	char *heap = malloc(64);
	counter++;
	TRY(memcpy(heap, p, 64), "copy from open");
	int pipes[2];
	if (pipe2(pipes, O_NONBLOCK))
		return 1;
	call("write from open", write(pipes[1], p, 16));
	call("read to open", read(pipes[0], p + 16, 16));
	run(thread, p);
	raise(SIGUSR1);
	printf("in a handler %x, after it %x\n", in_handler, pkru());

	pkey_set(key, PKEY_DISABLE_WRITE);
	printf("rights %x\n", pkru());
	TRY(memcpy(heap, p, 64), "copy from write-protected");
	TRY(memcpy(p, heap, 64), "copy to write-protected");
	call("write from write-protected", write(pipes[1], p, 16));
	call("read to write-protected", read(pipes[0], p + 16, 16));

	pkey_set(key, PKEY_DISABLE_ACCESS);
	TRY(memcpy(heap, p, 8), "copy from closed");
	TRY(*(volatile char *)p = 3, "store to closed");
	TRY(counter += *(volatile char *)(p + 4), "addition from closed");
	call("write from closed", write(pipes[1], p, 16));
	run(thread, p + 8192);
	fflush(stdout);
	if (!fork()) {
		TRY(*(volatile char *)p = 3, "store of a child");
		printf("a child has %x\n", pkru());
		fflush(stdout);
		_exit(0);
	}
	wait(NULL);

	char *code_page = pages(1);
	memcpy(code_page, "\xff\x07\xc3", 3); /* incl (%rdi); ret */
	mprotect(code_page, 4096, PROT_EXEC);
	printf("with memory that may only be executed %x\n", pkru());
	counter = 0;
	for (int i = 0; i < 1000; i++)
		((void (*)(long *))code_page)(&counter);
	int *on_heap = calloc(1, sizeof *on_heap);
	for (int i = 0; i < 1000; i++)
		((void (*)(int *))code_page)(on_heap);
	printf("counted to %ld and %d\n", counter, *on_heap);
	TRY(printf("%d\n", *(volatile char *)code_page), "load from it");

	/* A page of the heap, which may be watched, gets a key. */
	char *own = aligned_alloc(4096, 8192);
	memset(own, 7, 8192);
	pkey_set(key, 0);
	call("pkey_mprotect of the heap", pkey_mprotect(own, 4096, PROT_READ | PROT_WRITE, key));
	TRY(own[5] = 9, "store");
	pkey_set(key, PKEY_DISABLE_WRITE);
	TRY(heap[0] = own[5], "load from write-protected");
	TRY(own[5] = 10, "store to write-protected");
	pkey_set(key, PKEY_DISABLE_ACCESS);
	TRY(heap[0] = own[5], "load from closed");
	TRY(own[4096] = 1, "store beside it");
	call("write from closed", write(pipes[1], own, 16));
	pkey_set(key, 0);
	printf("the heap has %d and %d\n", own[5], own[4096]);
	call("pkey_mprotect back", pkey_mprotect(own, 4096, PROT_READ | PROT_WRITE, 0));
	call("pkey_free", pkey_free(key));
	own[5]++;
	printf("rights at last %x, the heap has %d\n", pkru(), own[5]);
	return 0;
}
