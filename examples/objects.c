/* Objects on the heap: a list of nodes, and one object that is grown until it moves, written, and freed. */
#include <stdio.h>
#include <stdlib.h>

struct node {
	struct node *next;
	int refcount;
	char name[36];
};

struct table {
	int used;
	int slots[];
};

struct node *list;
struct table *table;
int kept;

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

__attribute__((noinline)) void done(void)
{
	__asm__ volatile("");
}

__attribute__((noinline)) static void *block_in_between(void)
{
	return malloc(100);
}

__attribute__((noinline)) static void grow(void)
{
	table = realloc(table, 100000);
}

__attribute__((noinline)) static void drop(void)
{
	free(table);
}

int main(void)
{
	for (int i = 0; i < 5; i++) {
		struct node *node = calloc(1, sizeof *node);
		node->refcount = i;
		node->next = list;
		list = node;
	}
	table = calloc(1, sizeof *table + 4 * sizeof table->slots[0]);
	void *between = block_in_between();
	ready();
	for (struct node *node = list; node; node = node->next)
		node->refcount += 10;
	table->used = 1;
	grow();
	table->used = 2;
	table->used = 3;
	kept = table->used;
	drop();
	int *other = malloc(100000); /* where the table was */
	other[0] = 77;
	done();
	printf("objects: kept %d, %d\n", kept, other[0] + list->refcount);
	free(other);
	free(between);
	return 0;
}
