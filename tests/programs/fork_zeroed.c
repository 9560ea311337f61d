/* Memory that forked children inherit: as it is, as zeros (MADV_WIPEONFORK) or not at all (MADV_DONTFORK). */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
enum { PLAIN, NOTHING, ZEROS, SHARED, SHARED_NOTHING, KINDS };
long *plain, *nothing, *zeros, *shared, *shared_nothing;
static long **const words[KINDS] = { &plain, &nothing, &zeros, &shared, &shared_nothing };

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

static void say(const char *who)
{
	unsigned char there;

	printf("  %s:", who);
	for (int i = 0; i < KINDS; i++)
		if (mincore((void *)((long)*words[i] & -PAGE), PAGE, &there))
			printf(" -");
		else
			printf(" %ld", **words[i]);
	printf("\n");
	fflush(stdout);
}

static void end(pid_t child)
{
	int status;

	if (child == 0)
		_exit(0);
	if (waitpid(child, &status, 0) != child || status != 0)
		printf("  status %x\n", status);
}

static void tell(const char *when)
{
	pid_t child, grandchild;

	printf("%s\n", when);
	say("parent");
	child = fork();
	if (child == 0) {
		say("child");
		grandchild = fork();
		if (grandchild == 0)
			say("grandchild");
		end(grandchild);
	}
	end(child);
}

static void advise(int private_nothing, int private_zeros, int shared_memory)
{
	if (madvise((void *)((long)nothing & -PAGE), PAGE, private_nothing) ||
	    madvise((void *)((long)zeros & -PAGE), PAGE, private_zeros) ||
	    madvise((void *)((long)shared_nothing & -PAGE), PAGE, shared_memory))
		perror("madvise");
}

int main(void)
{
	char *own = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *common = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	for (int i = 0; i < KINDS; i++) {
		*words[i] = (long *)((i < SHARED ? own + i * PAGE : common + (i - SHARED) * PAGE) + 64);
		**words[i] = i + 1;
	}
	advise(MADV_DONTFORK, MADV_WIPEONFORK, MADV_DONTFORK);
	ready();
	tell("advice from before");
	for (int i = 0; i < KINDS; i++)
		**words[i] += 10;
	tell("other values");
	mprotect(own, 3 * PAGE, PROT_READ);
	tell("protected");
	mprotect(own, 3 * PAGE, PROT_READ | PROT_WRITE);
	advise(MADV_DOFORK, MADV_KEEPONFORK, MADV_DOFORK);
	tell("taken back");
	advise(MADV_DONTFORK, MADV_WIPEONFORK, MADV_DONTFORK);
	for (int i = 0; i < KINDS; i++)
		**words[i] += 10;
	tell("given again");
	return 0;
}
