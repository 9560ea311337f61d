/* Kinds and styles of watchpoints: reads, one thread's accesses, counting, one shot, changes only. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <sys/syscall.h>
#include <ulpf_names.h>

static volatile int reads, writes, told;

static void handler(const struct ulpf_hit *hit, void *data)
{
	(void)data;
	if (hit->access & ULPF_READ)
		reads++;
	if (hit->access & ULPF_WRITE)
		writes++;
	told++;
}
static unsigned long hits(long id)
{
	struct ulpf_counts c = { 0, 0, 0 };
	ulpf_watchpoint_counts(id, &c);
	return c.hits;
}
static volatile int *words;
static void *other(void *arg)
{
	(void)arg;
	for (int i = 0; i < 7; i++)
		words[20]++;
	return NULL;
}
static long with(volatile void *addr, size_t len, unsigned flags, pid_t thread)
{
	struct ulpf_watchpoint w = ULPF_WATCHPOINT_INIT;
	w.addr = (void *)addr, w.len = len, w.flags = flags, w.thread = thread, w.handler = handler;
	long id = -1;
	if (ulpf_insert(&w, 1, &id) < 0)
		fprintf(stderr, "%s\n", ulpf_error());
	return id;
}

int main(void)
{
	words = aligned_alloc(4096, 4096);
	pid_t me = syscall(SYS_gettid);
	set_handler(handler, NULL);

	long r = insert_watchpoint((void *)&words[0], 4, ULPF_READ);
	words[0] = 5;
	int sum = words[0] + words[0];
	words[0] += sum;
	printf("read watch: %lu hits, %d reads\n", hits(r), reads);
	delete_watchpoint(r);

	long counter = insert_watchpoint((void *)&words[4], 16, ULPF_WRITE);
	set_handler(NULL, NULL);
	told = 0;
	for (int i = 0; i < 1000; i++)
		words[4 + i % 8] = i;
	printf("counting: %lu hits, %d told\n", hits(counter), told);

	long once = with(&words[12], 4, ULPF_ONE_SHOT, 0);
	long changed = with(&words[13], 4, ULPF_CHANGED, 0);
	for (int i = 0; i < 6; i++)
		words[12] = i;
	printf("one shot: %lu hit, %d told\n", hits(once), told);
	told = 0;
	for (int i = 0; i < 6; i++)
		words[13] = i / 3 + 1;
	printf("changes: %lu hits, %d told\n", hits(changed), told);

	long mine = with(&words[20], 4, 0, me), theirs = with(&words[20], 4, ULPF_OTHERS, me);
	pthread_t t;
	pthread_create(&t, NULL, other, NULL);
	pthread_join(t, NULL);
	for (int i = 0; i < 3; i++)
		words[20]++;
	printf("this thread: %lu hits, others: %lu hits\n", hits(mine), hits(theirs));
	printf("back end: %s\n", ulpf_backend_name());
	return 0;
}
