/* Actions that handlers may take, and stops. */
#include "checks.h"

static long id_nested;
static void write_in_handler(const struct ulpf_hit *hit, void *data)
{
	(void)hit;
	calls++;
	/* Another page, and the very one: nested faults on the same exception stack. */
	target[8]++;
	((volatile char *)data)[0]++;
	errno = ENOTTY;
}
CASE(nested)
{
	target = pages(3);
	id_nested = insert_watchpoint((void *)target, 16, ULPF_WRITE);
	long other = insert_watchpoint((void *)(target + 2 * PAGE), 1, ULPF_WRITE);
	OK(id_nested); OK(other);
	ulpf_set_handler(write_in_handler, (void *)(target + 2 * PAGE));
	errno = EXDEV;
	for (int i = 0; i < 5; i++)
		target[0]++;
	EQ(errno, EXDEV);
	EQ(calls, 5);
	EQ(counts(id_nested).hits, 10);
	EQ(counts(other).hits, 5);
	EQ(target[2 * PAGE], 5);
	EQ(stats().nested, 10);
}
static void recurse(const struct ulpf_hit *hit, void *data)
{
	calls++;
	if (hit->count < 6)
		++*(volatile char *)data;
}
CASE(recursion)
{
	target = pages(1);
	struct ulpf_watchpoint w = ULPF_WATCHPOINT_INIT;
	w.addr = (void *)target, w.len = 1, w.flags = ULPF_NESTED, w.handler = recurse, w.data = (void *)target;
	OK(ulpf_insert(&w, 1, NULL));
	target[0] = 1;
	EQ(calls, 6);
	EQ(target[0], 6);
}
static void change_in_handler(const struct ulpf_hit *hit, void *data)
{
	calls++;
	OK(delete_watchpoint(hit->watch));
	*(long *)data = insert_watchpoint((char *)hit->addr + 1, 1, ULPF_WRITE);
	OK(*(long *)data);
}
CASE(changes_in_handlers)
{
	static long now;
	target = pages(1);
	OK(ulpf_set_handler(change_in_handler, &now));
	OK(now = insert_watchpoint((void *)target, 1, ULPF_WRITE));
	for (int i = 0; i < 10; i++)
		target[i] = 'x', target[i] = 'y';
	EQ(calls, 10);
	CHECK(!memcmp((char *)target, "yyyyyyyyyy", 10), "%.10s", (char *)target);
}
static void rearm(void)
{
	calls++;
	OK(set_permissions((void *)read_fault_addr(), 1, USER_RW));
}
CASE(thesis_handler_changes)
{
	target = pages(1);
	OK(register_user_handler(rearm));
	OK(set_permissions((void *)target, 4, USER_RO));
	for (int i = 0; i < 8; i++)
		target[i % 4] += 1;
	EQ(calls, 4);
	EQ(target[0] + target[3], 4);
}

static void jump_out(const struct ulpf_hit *hit, void *data)
{
	(void)hit, (void)data;
	calls++;
	siglongjmp(back, 1);
}
CASE(left_by_jump)
{
	target = pages(2);
	OK(ulpf_set_handler(jump_out, NULL));
	long id = insert_watchpoint((void *)target, 8, ULPF_WRITE);
	OK(id);
	for (int i = 0; i < 100; i++)
		if (!sigsetjmp(back, 1)) {
			target[i % 8] = i;
			CHECK(0, "the handler has returned");
		}
	EQ(calls, 100);
	OK(delete_watchpoint(id));
	OK(insert_watchpoint((void *)(target + PAGE), 8, ULPF_WRITE));
	EQ(target[3], 99); /* made before the handler was called */
}
/* ---- a stop ---- */

static volatile unsigned long trapped_at;
static void on_trap(int signo, siginfo_t *info, void *context)
{
	(void)signo, (void)info;
	caught++;
	trapped_at = ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
}
CASE(stops)
{
	/* Under a debugger the signal is the debugger's. */
	if (!getenv("STOP_FOR_THE_DEBUGGER")) {
		struct sigaction sa = { .sa_sigaction = on_trap, .sa_flags = SA_SIGINFO };
		sigaction(SIGTRAP, &sa, NULL);
	}
	target = pages(1);
	struct ulpf_watchpoint w = ULPF_WATCHPOINT_INIT;
	w.addr = (void *)target, w.len = 1, w.flags = ULPF_STOP | ULPF_CHANGED;
	OK(ulpf_insert(&w, 1, NULL));
	unsigned long behind;
	asm volatile("movb $0, (%1)\n\tmovb $5, (%1)\n0:\tlea 0b(%%rip), %0" : "=&r"(behind) : "r"(target) : "memory");
	if (!getenv("STOP_FOR_THE_DEBUGGER")) {
		EQ(caught, 1);
		CHECK(trapped_at == behind, "stopped at %#lx, not %#lx", trapped_at, behind);
	}
	EQ(target[0], 5);
}
