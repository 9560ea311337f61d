/* Cases of libulpf that are promises rather than examples; `checks NAME` runs one, and says what is wrong. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>
#include <ulpf_names.h>

#define PAGE 4096
#define CHECK(what, ...) do { if (!(what)) { printf("%s:%d: %s: ", __FILE__, __LINE__, #what); \
	printf(__VA_ARGS__); printf("\n"); exit(1); } } while (0)
#define OK(call) CHECK((call) >= 0, "%s (%s)", ulpf_error(), strerror(errno))
#define EQ(a, b) do { long a_ = (long)(a), b_ = (long)(b); CHECK(a_ == b_, "%ld, not %ld", a_, b_); } while (0)

static char *pages(int n)
{
	char *at = mmap(NULL, n * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(at != MAP_FAILED, "mmap");
	return at;
}
static struct ulpf_counts counts(long id)
{
	struct ulpf_counts c = { 0, 0, 0 };
	OK(ulpf_watchpoint_counts(id, &c));
	return c;
}
static struct ulpf_stats stats(void)
{
	struct ulpf_stats s;
	ulpf_statistics(&s);
	return s;
}
static volatile long calls;
static void count_call(const struct ulpf_hit *hit, void *data)
{
	(void)hit, (void)data;
	__atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED);
}
static void nothing(void) {}

/* ---- threads ---- */

#define THREADS 8
#define ROUNDS 3000
static long *shared_words;
static void *bump(void *arg)
{
	long *mine = shared_words + 1 + (long)arg;
	for (int i = 0; i < ROUNDS; i++) {
		__atomic_fetch_add(shared_words, 1, __ATOMIC_RELAXED);
		++*(volatile long *)mine;
	}
	return NULL;
}
static void threads(void)
{
	shared_words = (long *)pages(1);
	long all = insert_watchpoint(shared_words, 8, ULPF_WRITE), one = insert_watchpoint(shared_words + 3, 8, ULPF_WRITE);
	OK(all); OK(one);
	pthread_t t[THREADS];
	for (long i = 0; i < THREADS; i++)
		pthread_create(&t[i], NULL, bump, (void *)i);
	for (int i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	EQ(*shared_words, THREADS * ROUNDS);
	EQ(counts(all).hits, THREADS * ROUNDS);
	EQ(counts(one).hits, ROUNDS);
	EQ(stats().opened, 0);
}

/* Threads write while watches on their pages, and their neighbours', come and go: nothing is lost. */
static volatile int stop_now;
static void *bump_until(void *arg)
{
	volatile long *mine = arg;
	while (!stop_now)
		++mine[0], ++mine[1], mine[2] = mine[0] + mine[1];
	return NULL;
}
static void changes_under_way(void)
{
	char *at = pages(6);
	pthread_t t[4];
	for (long i = 0; i < 4; i++)
		pthread_create(&t[i], NULL, bump_until, at + PAGE * (i + 1) + 64 * i);
	for (int i = 0; i < 200; i++) {
		long a = insert_watchpoint(at + PAGE * (1 + i % 4) + 2048, 8, ULPF_WRITE);
		long b = insert_watchpoint(at + PAGE * (1 + i % 3) + 64 * (i % 3), 8, i % 2 ? ULPF_WRITE : ULPF_ACCESS);
		OK(a); OK(b);
		usleep(200);
		OK(delete_watchpoint(a));
		OK(delete_watchpoint(b));
		if (i % 50 == 49)
			OK(ulpf_unregister());
	}
	stop_now = 1;
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
	for (long i = 0; i < 4; i++) {
		long *mine = (long *)(at + PAGE * (i + 1) + 64 * i);
		EQ(mine[0], mine[1]);
		EQ(mine[2], mine[0] + mine[1]);
		CHECK(mine[0] > 0, "thread %ld never ran", i);
	}
}

/* ---- faults anywhere ---- */

static void in_malloc(void)
{
	/* The allocator's own structures lie on watched pages. */
	char *before = malloc(100);
	long id = insert_watchpoint((void *)((unsigned long)before & ~(PAGE - 1ul)), PAGE, ULPF_ACCESS);
	OK(id);
	ulpf_set_handler(count_call, NULL);
	for (int i = 0; i < 2000; i++) {
		char *p = malloc(i % 300 + 1), *q = malloc(24);
		memset(p, i, i % 300 + 1);
		free(p);
		p = realloc(q, 200 + i % 100);
		free(p);
	}
	CHECK(counts(id).hits > 1000, "%ld hits", (long)counts(id).hits);
	CHECK(calls > 1000, "%ld calls", calls);
	OK(delete_watchpoint(id));
	free(before);
}

static volatile char *target;
static volatile int signals;
static void on_signal(int signo)
{
	(void)signo;
	for (int i = 0; i < 10; i++)
		target[i]++;
	signals++;
}
static void in_signal_handlers(void)
{
	target = pages(1);
	long id = insert_watchpoint((void *)target, 4, ULPF_WRITE);
	OK(id);
	signal(SIGUSR1, on_signal);
	for (int i = 0; i < 100; i++) {
		raise(SIGUSR1);
		target[0]++;
	}
	EQ(signals, 100);
	EQ(target[0], (char)200);
	EQ(counts(id).hits, 500);
}

static void blocked(void)
{
	target = pages(1);
	long id = insert_watchpoint((void *)target, 4, ULPF_WRITE);
	OK(id);
	sigset_t all, was;
	sigfillset(&all);
	EQ(sigprocmask(SIG_SETMASK, &all, &was), 0);
	target[0] = 1;
	EQ(pthread_sigmask(SIG_SETMASK, NULL, &all), 0);
	EQ(sigismember(&all, SIGUSR1), 1);
	EQ(sigismember(&all, SIGSEGV), 0);
	struct sigaction sa = { .sa_handler = on_signal };
	sigfillset(&sa.sa_mask);
	sigaction(SIGUSR2, &sa, NULL);
	sigprocmask(SIG_SETMASK, &was, NULL);
	raise(SIGUSR2);
	EQ(counts(id).hits, 1 + 4);
}

/* ---- the program's own handlers ---- */

static sigjmp_buf back;
static volatile long caught;
static char *unmapped;
static void on_segv(int signo, siginfo_t *info, void *context)
{
	(void)context;
	CHECK(info->si_addr == unmapped, "si_addr %p, not %p", info->si_addr, unmapped);
	caught += signo;
	siglongjmp(back, 1);
}
static void own_faults(void)
{
	struct sigaction sa = { .sa_sigaction = on_segv, .sa_flags = SA_SIGINFO }, old;
	sigaction(SIGSEGV, &sa, NULL);
	target = pages(1);
	long id = insert_watchpoint((void *)target, 4, ULPF_WRITE);
	OK(id);
	unmapped = pages(2);
	munmap(unmapped, 2 * PAGE);
	for (int i = 0; i < 3; i++) {
		if (!sigsetjmp(back, 1))
			*(volatile char *)unmapped = 1;
		target[1]++;
	}
	EQ(caught, 3 * SIGSEGV);
	/* One that comes later displaces the earlier one, not us. */
	EQ(sigaction(SIGSEGV, NULL, &old), 0);
	CHECK(old.sa_sigaction == on_segv, "sigaction tells of another handler");
	CHECK(signal(SIGSEGV, SIG_DFL) == (sighandler_t)(void *)on_segv, "signal tells of another handler");
	target[1]++;
	EQ(sigaction(SIGSEGV, &sa, NULL), 0);
	if (!sigsetjmp(back, 1))
		*(volatile char *)unmapped = 1;
	EQ(caught, 4 * SIGSEGV);
	/* Read-only memory of the program's own, faulted by a store that a guard has caught first. */
	EQ(counts(id).hits, 4);
	signal(SIGSEGV, SIG_DFL);
	pid_t child = fork();
	if (child == 0) {
		*(volatile char *)unmapped = 1;
		_exit(0);
	}
	int status;
	waitpid(child, &status, 0);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV, "status %#x", status);
}
static void on_fpe(int signo, siginfo_t *info, void *context)
{
	(void)info, (void)context;
	caught += signo;
	siglongjmp(back, 1);
}
static void division(void)
{
	/* The division happens in generated code; the program sees its own. */
	struct sigaction sa = { .sa_sigaction = on_fpe, .sa_flags = SA_SIGINFO };
	sigaction(SIGFPE, &sa, NULL);
	volatile int *zero = (int *)pages(1);
	long id = insert_watchpoint((void *)zero, 4, ULPF_READ);
	OK(id);
	if (!sigsetjmp(back, 1))
		asm volatile("movl $7, %%eax; cltd; idivl %0" : : "m"(*zero) : "eax", "edx");
	EQ(caught, SIGFPE);
}

/* ---- handlers ---- */

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
static void nested(void)
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
static void recursion(void)
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
static void changes_in_handlers(void)
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
static void thesis_handler_changes(void)
{
	target = pages(1);
	OK(register_user_handler(rearm));
	OK(set_permissions((void *)target, 4, USER_RO));
	for (int i = 0; i < 8; i++)
		target[i % 4] += 1;
	EQ(calls, 4);
	EQ(target[0] + target[3], 4);
}

/* ---- fork, system calls ---- */

static void forks(void)
{
	target = pages(3);
	memset((void *)target, 'p', 3 * PAGE);
	long id = insert_watchpoint((void *)(target + PAGE), PAGE, ULPF_WRITE);
	OK(id);
	for (int round = 0; round < 20; round++) {
		pid_t child = fork();
		if (child == 0) {
			/* Private, unwatched; and it may watch for itself. */
			for (int i = 0; i < 3; i++)
				target[i * PAGE] = 'c';
			struct ulpf_counts c;
			if (ulpf_watchpoint_counts(id, &c) == 0)
				_exit(2);
			long mine = insert_watchpoint((void *)(target + 8), 1, ULPF_WRITE);
			if (mine < 0)
				_exit(3);
			target[8] = 'd';
			if (counts(mine).hits != 1 || target[PAGE] != 'c' || target[PAGE + 1] != 'p')
				_exit(4);
			_exit(0);
		}
		target[PAGE + 9] = round;
		int status;
		waitpid(child, &status, 0);
		EQ(status, 0);
		for (int i = 0; i < 3; i++)
			EQ(target[i * PAGE], 'p');
	}
	EQ(counts(id).hits, 20);
}
static void system_calls(void)
{
	target = pages(3);
	long id = insert_watchpoint((void *)(target + PAGE), 64, ULPF_WRITE);
	OK(id);
	int fds[2];
	EQ(pipe(fds), 0);
	EQ(write(fds[1], "hello", 5), 5);
	/* The kernel cannot write there by itself, and says so; what it was to read stays. */
	EQ(read(fds[0], (void *)(target + PAGE), 5), -1);
	EQ(errno, EFAULT);
	char *alias = ulpf_alias((void *)(target + PAGE), 64);
	CHECK(alias && alias != target + PAGE, "%p", alias);
	EQ(read(fds[0], alias, 5), 5);
	CHECK(!memcmp((char *)target + PAGE, "hello", 5), "%.5s", (char *)target + PAGE);
	EQ(counts(id).hits, 0);
	/* Reading under a write watch, and neighbours, work as ever. */
	EQ(write(fds[1], (char *)target + PAGE, 5), 5);
	EQ(read(fds[0], (char *)target, 5), 5);
	char *elsewhere = malloc(10);
	CHECK(ulpf_alias(elsewhere, 10) == elsewhere, "an unguarded buffer is its own alias");
}

/* ---- bad input ---- */

#define REFUSED(call, error) do { errno = 0; CHECK((call) == -1, "not refused"); \
	CHECK(errno == (error), "%s, not %s", strerrorname_np(errno), #error); \
	CHECK(strlen(ulpf_error()) > 10, "no sentence"); } while (0)
static int descriptors(void)
{
	int n = 0;
	for (int fd = 0; fd < 256; fd++)
		n += syscall(SYS_fcntl, fd, 1) >= 0;
	return n;
}
static void bad_input(void)
{
	char *p = pages(4);
	munmap(p + 3 * PAGE, PAGE);
	REFUSED(set_permissions(p, 1, USER_RO), EPERM);
	REFUSED(register_user_handler(NULL), EINVAL);
	REFUSED(register_user_handler(0xffffffff81000000), EFAULT);
	REFUSED(register_user_handler(0x10000), EFAULT);
	REFUSED(register_user_handler(p), EFAULT);
	OK(register_user_handler(nothing));
	REFUSED(register_user_handler(nothing), EBUSY);
	long id = insert_watchpoint(p, 8, ULPF_WRITE);
	OK(id);
	int open = descriptors();
	for (int i = 0; i < 50; i++) {
		REFUSED(set_permissions(p, 1, 2), EINVAL);
		REFUSED(set_permissions(p, 0, USER_RO), EINVAL);
		REFUSED(set_permissions(p + 3 * PAGE, 1, USER_RO), EFAULT);
		REFUSED(set_permissions(p + 3 * PAGE - 1, 2, USER_RO), EFAULT);
		REFUSED(set_permissions((void *)0xffffffff81000000, 8, USER_RO), EFAULT);
		REFUSED(set_permissions((void *)0x7fffffffeff0, 1ul << 40, USER_RO), EFAULT);
		REFUSED(set_permissions((void *)-16, 32, USER_RO), EFAULT);
		REFUSED(set_permissions(NULL, 8, USER_RO), EFAULT);
		REFUSED(insert_watchpoint(p + 3 * PAGE, 1, ULPF_WRITE), EFAULT);
		REFUSED(insert_watchpoint(p, 0, ULPF_WRITE), EINVAL);
		REFUSED(insert_watchpoint(p, 8, 0), EINVAL);
		REFUSED(insert_watchpoint(p, 8, 4), EINVAL);
		REFUSED(insert_watchpoint((void *)bad_input, 8, ULPF_ACCESS), EOPNOTSUPP);
		REFUSED(delete_watchpoint(0), ENOENT);
		REFUSED(delete_watchpoint(-1), ENOENT);
		REFUSED(delete_watchpoint(1l << 40), ENOENT);
		REFUSED(ulpf_insert(NULL, 1, NULL), EINVAL);
		REFUSED(modify_pli(p, USER_RO, 12345), EINVAL);
		REFUSED(modify_pli(p, 5, check_virt_prefix(p)), EINVAL);
		/* All of them or none. */
		struct ulpf_watchpoint two[2] = { ULPF_WATCHPOINT_INIT, ULPF_WATCHPOINT_INIT };
		two[0].addr = p + PAGE, two[0].len = 8, two[1].addr = p + 3 * PAGE, two[1].len = 8;
		REFUSED(ulpf_insert(two, 2, NULL), EFAULT);
		two[1].addr = p, two[1].flags = 64;
		REFUSED(ulpf_insert(two, 2, NULL), EINVAL);
		two[1].flags = 0, two[1].size = 3;
		REFUSED(ulpf_insert(two, 2, NULL), EINVAL);
		mprotect(p + 2 * PAGE, PAGE, PROT_READ);
		REFUSED(insert_watchpoint(p + 2 * PAGE, 8, ULPF_WRITE), EACCES);
		mprotect(p + 2 * PAGE, PAGE, PROT_READ | PROT_WRITE);
	}
	EQ(descriptors(), open);
	/* What was refused has left nothing behind. */
	struct ulpf_stats before = stats();
	p[PAGE] = 1, p[2 * PAGE] = 1;
	EQ(stats().faults, before.faults);
	p[0] = 1;
	EQ(counts(id).hits, 1);
	OK(delete_watchpoint(id));
	REFUSED(delete_watchpoint(id), ENOENT);
	p[0] = 1;
	EQ(stats().faults, before.faults + 1);
	errno = EXDEV;
	OK(ulpf_unregister());
	EQ(errno, EXDEV);
}

/* ---- the thesis's structures ---- */

static void plis(void)
{
	char *p = mmap(NULL, 8 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	p = (char *)(((unsigned long)p + (2 << 20)) & ~((2ul << 20) - 1));
	OK(register_user_handler(nothing));
	EQ(check_virt_prefix(p), 0);
	OK(set_permissions(p + 5 * PAGE + 17, 3, USER_RO));
	unsigned long region = check_virt_prefix(p);
	CHECK(region && region % 128 == 0 && region % PAGE, "%#lx", region);
	EQ(check_virt_prefix(p + (2 << 20) - 1), region);
	EQ(check_virt_prefix(p + (2 << 20)), 0);
	/* Page 5: bits 10 and 11. */
	EQ(((unsigned char *)region)[1], 1 << 2);
	unsigned free_regions = *(unsigned *)(region & ~(PAGE - 1ul));
	EQ(free_regions, 3);
	OK(set_permissions(p + (2 << 20) - 1, 2, USER_WO));
	EQ(*(unsigned *)(region & ~(PAGE - 1ul)), 7);
	EQ(((unsigned char *)region)[127], 3 << 6);
	/* A page's bits by hand: faults, and false positives, for nothing on it is watched. */
	OK(modify_pli(p + 9 * PAGE, USER_RO, region));
	struct ulpf_stats before = stats();
	p[9 * PAGE] = 1;
	EQ(stats().false_positives, before.false_positives + 1);
	OK(modify_pli(p + 9 * PAGE, USER_RW, region));
	p[9 * PAGE] = 2;
	EQ(stats().faults, before.faults + 1);
}

/* ---- an instruction that cannot be redirected; a watched stack ---- */

static void slow(void)
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
	CHECK(stats().opened >= 20, "%ld steps", (long)stats().opened);
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
static void stack(void)
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

static void jump_out(const struct ulpf_hit *hit, void *data)
{
	(void)hit, (void)data;
	calls++;
	siglongjmp(back, 1);
}
static void left_by_jump(void)
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
static void strings(void)
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

/* ---- a stop ---- */

static volatile unsigned long trapped_at;
static void on_trap(int signo, siginfo_t *info, void *context)
{
	(void)signo, (void)info;
	caught++;
	trapped_at = ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
}
static void stops(void)
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

static const struct { const char *name; void (*run)(void); } CASES[] = {
	{ "threads", threads }, { "changes_under_way", changes_under_way }, { "in_malloc", in_malloc },
	{ "in_signal_handlers", in_signal_handlers }, { "blocked", blocked }, { "own_faults", own_faults },
	{ "division", division }, { "nested", nested }, { "recursion", recursion },
	{ "changes_in_handlers", changes_in_handlers }, { "thesis_handler_changes", thesis_handler_changes },
	{ "forks", forks }, { "system_calls", system_calls }, { "bad_input", bad_input }, { "plis", plis },
	{ "slow", slow }, { "stack", stack }, { "stops", stops },
	{ "left_by_jump", left_by_jump }, { "strings", strings },
};

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IONBF, 0);
	for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
		if (argc == 2 && !strcmp(argv[1], CASES[i].name)) {
			CASES[i].run();
			printf("ok\n");
			return 0;
		}
	for (size_t i = 0; argc == 1 && i < sizeof CASES / sizeof *CASES; i++)
		printf("%s\n", CASES[i].name);
	return argc == 1 ? 0 : 2;
}
