/* A linked list of one thread, whose `next` another thread clobbers now and then. A watch on all the links,
 * for all threads but the owner, names the culprit and what it wrote. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/syscall.h>
#include <ulpf.h>

#define NODES 100

struct node {
	struct node *next;
	char name[24];
};
static struct node *nodes[NODES];
static char *victim_buffer;
static volatile int caught;
static volatile pid_t culprit, clobbered_by;

static void clobbered(const struct ulpf_hit *hit, void *data)
{
	(void)data;
	caught++;
	clobbered_by = hit->thread;
	char line[120];
	int n = snprintf(line, sizeof line, "next of node %d clobbered: %d bytes, now '%.*s'\n",
			 atoi(((struct node *)((char *)hit->addr - (size_t)hit->addr % 8))->name), (int)hit->len,
			 (int)hit->value_len, (const char *)hit->new_value);
	write(1, line, n);
	/* What it was. */
	memcpy(hit->addr, hit->old_value, hit->len);
}
static void __attribute__((noinline)) fill(char *to, const char *text)
{
	for (volatile size_t i = 0; i < strlen(text); i++)
		to[i] = text[i];
}
static void *writer(void *arg)
{
	(void)arg;
	culprit = syscall(SYS_gettid);
	/* It believes that its buffer is longer than it is. */
	for (int i = 0; i < 50; i++)
		fill(victim_buffer, i == 30 ? "a text that is longer than it should be" : "a short text");
	return NULL;
}

int main(void)
{
	/* One block, so that the buffer lies before a node. */
	struct node *pool = calloc(NODES, sizeof *pool);
	struct ulpf_watchpoint w[NODES];
	for (int i = 0; i < NODES; i++) {
		nodes[i] = &pool[i];
		snprintf(pool[i].name, sizeof pool[i].name, "%d", i);
		w[i] = (struct ulpf_watchpoint)ULPF_WATCHPOINT_INIT;
		w[i].addr = &pool[i].next;
		w[i].len = sizeof pool[i].next;
		w[i].flags = ULPF_OTHERS;
		w[i].thread = syscall(SYS_gettid);
		w[i].handler = clobbered;
	}
	victim_buffer = pool[41].name;
	if (ulpf_insert(w, NODES, NULL) < 0)
		return fprintf(stderr, "%s\n", ulpf_error()), 1;
	pthread_t t;
	pthread_create(&t, NULL, writer, NULL);
	int walks = 0;
	for (int round = 0; round < 20; round++) {
		for (int i = 0; i + 1 < NODES; i++)
			((volatile struct node *)nodes[i])->next = nodes[i + 1];
		walks++;
	}
	pthread_join(t, NULL);
	int length = 0;
	for (struct node *n = nodes[0]; n; n = n->next)
		length++;
	printf("%d links, %d clobbering stores, %s\n", length, caught,
	       clobbered_by == culprit ? "all by the writer" : "by somebody else");
	return 0;
}
