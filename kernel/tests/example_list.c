// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * A linked list whose `next` is clobbered by another thread. All `next` words are watched;
 * the one store that has no business there is found with its thread and its instruction.
 */
#include "step.h"

struct node {
	int value;
	struct node *next;
};

enum { NODES = 200 };

static struct {
	uintptr_t ip;
	pid_t tid;
	uint64_t before;
	struct node *node;
	int count;
} culprit;
static volatile unsigned long permitted;

static struct node *nodes;

/* Only these two functions may change the list. */
__attribute__((noinline, aligned(64))) static void list_push(struct node **head, struct node *node)
{
	node->next = *head;
	*(struct node *volatile *)head = node;
}

__attribute__((noinline, aligned(64))) static void parse(char *out, size_t length)
{
	size_t i;

	for (i = 0; i < length; i++)
		((volatile char *)out)[i] = 'A';	/* a buffer that is one node too short */
}

static bool is_next(uintptr_t addr)
{
	return (addr - (uintptr_t)nodes) % sizeof(struct node) >= 8 && (addr - (uintptr_t)nodes) / sizeof(struct node) < NODES;
}

static void look(struct ulpf_frame *frame)
{
	if (is_next(frame->addr)) {
		if (frame->ip - (uintptr_t)list_push < 64) {
			permitted++;
		} else if (!culprit.count++) {
			culprit.ip = frame->ip;
			culprit.tid = gettid();
			culprit.node = nodes + (frame->addr - (uintptr_t)nodes) / sizeof(struct node);
			culprit.before = *(uint64_t *)(the_space->alias + ((char *)&culprit.node->next - the_space->guarded));
		}
	}
	step_over(frame);
}

static pid_t guilty;

static void *bad_thread(void *arg)
{
	guilty = gettid();
	parse((char *)arg, 12);		/* meant for the 8 bytes before a `next` */
	return NULL;
}

TEST(who_clobbered_next)
{
	struct space *space = space_make(2);
	struct node *head = NULL, *victim, *at;
	pthread_t thread;
	int i, length = 0;

	nodes = (struct node *)space->guarded;
	step_begin();
	on_fault = look;
	EXPECT_EQ(handler(space, entry, 0), 0);
	EXPECT_EQ(set(space, space->guarded, space->size, ULPF_RO), 0);
	for (i = 0; i < NODES; i++)
		list_push(&head, nodes + i);
	EXPECT_EQ(permitted, NODES);
	EXPECT_EQ(culprit.count, 0);
	for (at = head; at; at = at->next)
		length++;
	EXPECT_EQ(length, NODES);

	victim = nodes + 77;
	EXPECT_EQ(pthread_create(&thread, NULL, bad_thread, victim), 0);
	pthread_join(thread, NULL);
	EXPECT_EQ(culprit.count, 4);
	EXPECT(culprit.node == victim);
	EXPECT_EQ(culprit.tid, guilty);
	EXPECT(culprit.ip - (uintptr_t)parse < 64);
	EXPECT_EQ(culprit.before, (uintptr_t)(nodes + 76));
	EXPECT(victim->next != nodes + 76);
}
