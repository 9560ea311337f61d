/* Odd instructions, and the own stack. */
#include "checks.h"

/* ---- an instruction that cannot be redirected; a watched stack ---- */

CASE(slow)
{
	/* The operand runs off the end of moved memory into a page that is shared by the program itself. */
	char *p = pages(4);
	CHECK(mmap(p + 2 * PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED, "mmap");
	long id = insert_watchpoint(p + 2 * PAGE - 8, 8, ULPF_WRITE);
	OK(id);
	ulpf_set_handler(count_call, NULL);
	for (int i = 0; i < 20; i++)
		*(volatile long *)(p + 2 * PAGE - 4) = 0x0101010101010101 * i;
	EQ(counts(id).hits, 20);
	EQ(calls, 20);
	EQ(p[2 * PAGE - 1], 19);
	EQ(p[2 * PAGE + 3], 19);
	/* Protection keys open the page for this thread only. */
	CHECK(strcmp(ulpf_backend_name(), "protection-keys") ? stats().opened >= 20 : !stats().opened, "%ld steps", (long)stats().opened);
	p[2 * PAGE - 8] = 1;
	EQ(counts(id).hits, 21);
}
static void __attribute__((noinline)) deeper(volatile char *buffer, int n)
{
	volatile char mine[200];
	for (int i = 0; i < 200; i++)
		mine[i] = buffer[i % 16] + n;
	if (n)
		deeper(mine, n - 1);
}
CASE(stack)
{
	volatile long local[64] = { 0 };
	long id = insert_watchpoint((void *)&local[32], 8, ULPF_WRITE);
	OK(id);
	for (int i = 0; i < 64; i++)
		local[i] = i;
	deeper((volatile char *)local, 100);
	long hits = counts(id).hits;
	OK(delete_watchpoint(id));
	EQ(hits, 1);
}

CASE(strings)
{
	/* Each iteration is an access; those beside the watch are false positives or run by themselves. */
	target = pages(3);
	memset((void *)target, 1, 3 * PAGE);
	long id = insert_watchpoint((void *)(target + PAGE + 100), 10, ULPF_WRITE);
	OK(id);
	void *to = (void *)(target + PAGE - 50);
	long n = PAGE + 100;
	asm volatile("rep stosb" : "+D"(to), "+c"(n) : "a"(7) : "memory");
	EQ(n, 0);
	CHECK(to == target + 2 * PAGE + 50, "%p", to);
	EQ(counts(id).hits, 10);
	for (int i = 0; i < 3 * PAGE; i++)
		EQ(target[i], i >= PAGE - 50 && i < 2 * PAGE + 50 ? 7 : 1);
}
