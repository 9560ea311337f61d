/* Chunks that children do not get (MADV_DONTFORK), as a collector has them: split, moved, given back, used again, by two
   threads. After each step a child says what it has. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
#define CHUNK (8 * PAGE)
#define RW (PROT_READ | PROT_WRITE)
enum { CHUNKS = 4 };
static char *chunks[CHUNKS];

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

static void *map(void *at, int fixed)
{
	char *p = mmap(at, CHUNK, RW, MAP_PRIVATE | MAP_ANONYMOUS | fixed, -1, 0);

	for (int i = 0; i < CHUNK; i += PAGE)
		p[i] = 'a' + i / PAGE;
	return p;
}

/* Prints the letter of each page, `*` for a wiped page, `-` for an unmapped one. */
static void say(const char *who)
{
	unsigned char there;

	printf("  %s:", who);
	for (int n = 0; n < CHUNKS; n++) {
		printf(" ");
		for (int i = 0; i < CHUNK; i += PAGE)
			if (mincore(chunks[n] + i, PAGE, &there))
				printf("-");
			else
				printf("%c", chunks[n][i] ? chunks[n][i] : '*');
	}
	printf("\n");
	fflush(stdout);
}

static void tell(const char *step)
{
	int status;
	pid_t child;

	printf("%s\n", step);
	say("parent");
	child = fork();
	if (child == 0) {
		say("child");
		_exit(0);
	}
	if (waitpid(child, &status, 0) != child || status != 0)
		printf("  status %x\n", status);
}

static void advise(int n, int from, int pages, int advice)
{
	if (madvise(chunks[n] + from * PAGE, pages * PAGE, advice))
		perror("madvise");
}

static void *worker(void *unused)
{
	for (int i = 0; i < 200; i++) {
		char *p = map(NULL, 0);

		if (i % 2)
			madvise(p, CHUNK, MADV_DONTFORK);
		munmap(p, CHUNK);
	}
	return unused;
}

int main(void)
{
	pthread_t other;
	char *all;

	ready();
	/* So far apart that they are mappings of their own. */
	all = mmap(NULL, 4 * CHUNKS * CHUNK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (int n = 0; n < CHUNKS; n++)
		chunks[n] = map(all + (4 * n + 1) * CHUNK, MAP_FIXED);
	advise(0, 0, 8, MADV_DONTFORK);
	advise(1, 0, 8, MADV_DONTFORK);
	advise(2, 2, 4, MADV_WIPEONFORK);
	tell("advised");
	advise(0, 2, 3, MADV_DOFORK);
	advise(1, 6, 2, MADV_WIPEONFORK);
	advise(1, 7, 1, MADV_DOFORK);
	advise(2, 3, 1, MADV_KEEPONFORK);
	tell("taken back in part");
	mprotect(chunks[0] + PAGE, 5 * PAGE, PROT_READ);
	mprotect(chunks[2] + PAGE, 3 * PAGE, PROT_READ);
	tell("protected in part");
	munmap(chunks[3], CHUNK);
	chunks[0] = mremap(chunks[0] + 6 * PAGE, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, chunks[3]);
	tell("moved");
	munmap(chunks[1], CHUNK);
	chunks[1] = map(chunks[1], MAP_FIXED_NOREPLACE);
	map(chunks[2], MAP_FIXED);
	tell("given back and used again");
	advise(1, 0, 8, MADV_DONTFORK);
	pthread_create(&other, NULL, worker, NULL);
	worker(NULL);
	pthread_join(other, NULL);
	advise(2, 1, 1, MADV_DONTFORK);
	tell("by two threads");
	if (madvise(chunks[1], 4 * CHUNK, MADV_DOFORK))
		perror("madvise");
	munmap(chunks[1] + 2 * PAGE, PAGE);
	if (madvise(chunks[1], 4 * PAGE, MADV_DONTFORK))
		perror("madvise");
	tell("with a hole");
	return 0;
}
