/* The back end `debug-registers`. */
#include "checks.h"

static volatile long words[8] __attribute__((aligned(64)));
static struct ulpf_hit seen[64];
static long olds[64], news[64];
static volatile int told;
static void note(const struct ulpf_hit *hit, void *data)
{
	(void)data;
	int n = __atomic_fetch_add(&told, 1, __ATOMIC_RELAXED) % 64;
	seen[n] = *hit;
	olds[n] = news[n] = 0;
	memcpy(&olds[n], hit->old_value, hit->value_len);
	memcpy(&news[n], hit->new_value, hit->value_len);
}

CASE(registers_tell)
{
	NEED_BACKEND("debug-registers");
	OK(ulpf_set_handler(note, NULL));
	long w = insert_watchpoint((void *)&words[0], 8, ULPF_WRITE), a = insert_watchpoint((void *)&words[2], 4, ULPF_ACCESS);
	long r = insert_watchpoint((void *)&words[4], 8, ULPF_READ);
	OK(w); OK(a); OK(r);
	CHECK(!strcmp(ulpf_backend_name(), "debug-registers"), "%s", ulpf_backend_name());
	CHECK(strstr(ulpf_backend_reason(), "the program has asked for it"), "%s", ulpf_backend_reason());
	unsigned long at;
	asm volatile("lea 0f(%%rip), %0\n0:\tmovq $7, %1" : "=&r"(at), "=m"(words[0]));
	EQ(told, 1);
	EQ(seen[0].pc, at);
	EQ(seen[0].addr, &words[0]);
	EQ(seen[0].len, 8);
	EQ(seen[0].access, ULPF_WRITE);
	EQ(seen[0].thread, gettid());
	EQ(olds[0], 0);
	EQ(news[0], 7);
	/* A store of one byte of it; a silent one. */
	((volatile char *)words)[1] = 2;
	EQ(seen[1].addr, (char *)words + 1);
	EQ(seen[1].len, 1);
	EQ(olds[1], 0);
	EQ(news[1], 2);
	words[0] = 7 + 512;
	EQ(seen[2].silent, 1);
	EQ(counts(w).silent, 1);
	/* Reads of it, and stores beside it, are no hits. */
	EQ(words[0], 519);
	words[1] = 1;
	EQ(told, 3);
	asm volatile("incl %0" : "+m"(words[2]));
	EQ(told, 4);
	EQ(seen[3].access, ULPF_ACCESS);
	long value;
	asm volatile("mov %1, %0" : "=r"(value) : "m"(words[2]));
	EQ(seen[4].access, ULPF_READ);
	words[4] = 4;
	EQ(counts(r).hits, 0);
	asm volatile("mov %1, %0" : "=r"(value) : "m"(words[4]));
	EQ(value, 4);
	EQ(counts(r).hits, 1);
	EQ(counts(w).hits, 3);
	EQ(counts(a).hits, 2);
	EQ(stats().faults, 0);
	OK(delete_watchpoint(w));
	words[0] = 9;
	EQ(told, 6);
}

CASE(registers_two_at_once)
{
	/* The kernel sends one signal for both. */
	NEED_BACKEND("debug-registers");
	OK(ulpf_set_handler(note, NULL));
	long one = insert_watchpoint((void *)&words[0], 8, ULPF_WRITE), two = insert_watchpoint((void *)&words[1], 4, ULPF_ACCESS);
	OK(one); OK(two);
	for (int i = 0; i < 10; i++)
		asm volatile("movd %0, %%xmm0\n\tpshufd $0, %%xmm0, %%xmm0\n\tmovups %%xmm0, (%1)" : : "r"(i + 1), "r"(words) : "xmm0", "memory");
	EQ(counts(one).hits, 10);
	EQ(counts(two).hits, 10);
	EQ(told, 20);
	for (int n = 18; n < 20; n++) {
		EQ(seen[n].access, ULPF_WRITE);
		EQ(news[n], seen[n].watch == one ? 10l << 32 | 10 : 10);
	}
	CHECK(seen[18].watch != seen[19].watch, "%ld twice", seen[18].watch);
}

static volatile int go_on;
static pid_t other;
static void *write_some(void *arg)
{
	other = gettid();
	while (!go_on)
		usleep(100);
	for (int i = 0; i < 100; i++)
		*(volatile long *)arg = i;
	return NULL;
}
CASE(registers_threads)
{
	NEED_BACKEND("debug-registers");
	pthread_t before, after;
	pthread_create(&before, NULL, write_some, (void *)&words[1]);
	while (!other)
		usleep(100);
	pid_t first = other;
	struct ulpf_watchpoint w[3] = { ULPF_WATCHPOINT_INIT, ULPF_WATCHPOINT_INIT, ULPF_WATCHPOINT_INIT };
	long ids[3];
	w[0].addr = (void *)&words[1], w[0].len = 8;
	w[1] = w[2] = w[0];
	w[1].thread = w[2].thread = first;
	w[2].flags = ULPF_OTHERS;
	OK(ulpf_insert(w, 3, ids));
	pthread_create(&after, NULL, write_some, (void *)&words[1]);
	go_on = 1;
	pthread_join(before, NULL);
	pthread_join(after, NULL);
	words[1] = -1;
	EQ(counts(ids[0]).hits, 201);
	EQ(counts(ids[1]).hits, 100);
	EQ(counts(ids[2]).hits, 101);
}

CASE(registers_system_calls)
{
	/* No page is guarded: the kernel writes where it likes, and that is no hit. */
	NEED_BACKEND("debug-registers");
	long id = insert_watchpoint((void *)&words[0], 8, ULPF_ACCESS);
	OK(id);
	CHECK(ulpf_alias((void *)words, 64) == (void *)words, "an alias");
	int fds[2];
	EQ(pipe(fds), 0);
	EQ(write(fds[1], "8 bytes.", 8), 8);
	EQ(read(fds[0], (void *)words, 8), 8);
	EQ(counts(id).hits, 0);
	/* (memcmp loads once or twice, as the addresses will have it.) */
	long got = words[0];
	CHECK(!memcmp(&got, "8 bytes.", 8), "%.8s", (char *)&got);
	EQ(counts(id).hits, 1);
	/* A child has none, and may set its own. */
	pid_t child = fork();
	if (child == 0) {
		words[0] = 1;
		long mine = insert_watchpoint((void *)&words[0], 8, ULPF_WRITE);
		OK(mine);
		words[0] = 2;
		EQ(counts(mine).hits, 1);
		_exit(0);
	}
	int status;
	waitpid(child, &status, 0);
	EQ(status, 0);
	EQ(counts(id).hits, 1);
}

static void nothing(void) {}
CASE(registers_refuse)
{
	NEED_BACKEND("debug-registers");
	long ids[4];
	REFUSED(register_user_handler(nothing), EOPNOTSUPP);
	REFUSED(set_permissions((void *)words, 8, USER_RO), EPERM);
	REFUSED(insert_watchpoint((void *)words, 16, ULPF_WRITE), EOPNOTSUPP);
	REFUSED(insert_watchpoint((char *)words + 1, 2, ULPF_WRITE), EOPNOTSUPP);
	REFUSED(insert_watchpoint((void *)8, 8, ULPF_WRITE), EFAULT);
	REFUSED(insert_watchpoint((void *)words, 0, ULPF_WRITE), EINVAL);
	REFUSED(modify_pli((void *)words, USER_RO, 128), EINVAL);
	EQ(check_virt_prefix((void *)words), 0);
	for (int i = 0; i < 4; i++)
		OK(ids[i] = insert_watchpoint((void *)&words[i], 8, ULPF_WRITE));
	for (int i = 0; i < 10; i++)
		REFUSED(insert_watchpoint((void *)&words[5], 8, ULPF_WRITE), ENOSPC);
	REFUSED(ulpf_use_backend("signal"), EBUSY);
	OK(ulpf_use_backend("debug-registers"));
	/* All of them or none. */
	OK(delete_watchpoint(ids[3]));
	struct ulpf_watchpoint two[2] = { ULPF_WATCHPOINT_INIT, ULPF_WATCHPOINT_INIT };
	two[0].addr = (void *)&words[5], two[1].addr = (void *)&words[6], two[0].len = two[1].len = 8;
	REFUSED(ulpf_insert(two, 2, NULL), ENOSPC);
	OK(ulpf_insert(two, 1, ids + 3));
	words[5] = 1;
	EQ(counts(ids[3]).hits, 1);
	OK(ulpf_unregister());
	words[0] = 1;
	REFUSED(delete_watchpoint(ids[0]), ENOENT);
	OK(insert_watchpoint((void *)&words[7], 8, ULPF_WRITE));
}
