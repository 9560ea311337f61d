/* Robust mutexes whose owner ends: legacy thread|exit|kill|exec. The next locker gets EOWNERDEAD. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* The watched word and the locks, on one page. */
static struct page {
	long word;
	pthread_mutex_t locks[3];
} *page;
long *word;

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

static void lock_all(void)
{
	for (int i = 0; i < 3; i++)
		pthread_mutex_lock(&page->locks[i]);
}

static void *owner(void *unused)
{
	lock_all();
	return unused;
}

static int inherit(void)
{
	struct timespec until;
	int wrong = 0;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 5;
	for (int i = 0; i < 3; i++) {
		int error = pthread_mutex_timedlock(&page->locks[i], &until);
		printf("legacy: %s\n", error ? strerror(error) : "locked");
		wrong += error != EOWNERDEAD;
	}
	fflush(stdout);
	return wrong;
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "thread";
	int alone = !strcmp(how, "thread"), pipes[2];
	pthread_mutexattr_t robust;
	pthread_t thread;
	char c;

	page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, (alone ? MAP_PRIVATE : MAP_SHARED) | MAP_ANONYMOUS, -1, 0);
	word = &page->word;
	pthread_mutexattr_init(&robust);
	pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST);
	pthread_mutexattr_setpshared(&robust, alone ? PTHREAD_PROCESS_PRIVATE : PTHREAD_PROCESS_SHARED);
	for (int i = 0; i < 3; i++)
		pthread_mutex_init(&page->locks[i], &robust);
	ready();
	*word = 1;
	if (alone) {
		pthread_create(&thread, NULL, owner, NULL);
		pthread_join(thread, NULL);
		return inherit();
	}
	if (pipe(pipes))
		return 9;
	if (fork() == 0) {
		if (read(pipes[0], &c, 1) != 1)
			return 9;
		return inherit();
	}
	pthread_create(&thread, NULL, owner, NULL);
	pthread_join(thread, NULL);
	for (int i = 0; i < 3; i++)
		if (pthread_mutex_lock(&page->locks[i]) == EOWNERDEAD)
			pthread_mutex_consistent(&page->locks[i]);
	if (write(pipes[1], "x", 1) != 1)
		return 9;
	/* Time for the child to wait for the first of them. */
	nanosleep(&(struct timespec){ 0, 100000000 }, NULL);
	if (!strcmp(how, "kill"))
		kill(getpid(), SIGKILL);
	if (!strcmp(how, "exec"))
		execl("/bin/sleep", "sleep", "1", NULL);
	return 0;
}
