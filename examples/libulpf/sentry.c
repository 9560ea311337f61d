/* The four kinds of bugs that Sentry-Watcher looks for (section 4.4 of the paper), each in a small program.
 *
 *     sentry overflow | smash | leak | invariant
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <ulpf_names.h>

static void say(const char *text, long number)
{
	/* Handlers run inside a signal handler: no printf. */
	char line[160];
	int n = snprintf(line, sizeof line, "%s %ld\n", text, number);
	write(1, line, n);
}

/* ---- buffer overflow: pad every buffer, and watch the padding ---- */

#define PAD 64

static void overflowed(const struct ulpf_hit *hit, void *buffer)
{
	say("overflow at byte", (char *)hit->addr - (char *)buffer);
}
static char *padded(size_t n)
{
	char *p = malloc(n + PAD);
	struct ulpf_watchpoint w = ULPF_WATCHPOINT_INIT;
	w.addr = p + n;
	w.len = PAD;
	w.handler = overflowed;
	w.data = p;
	if (ulpf_insert(&w, 1, NULL) < 0)
		fprintf(stderr, "%s\n", ulpf_error()), exit(1);
	return p;
}
static void overflow(void)
{
	char *name = padded(10), *greeting = padded(20);
	strcpy(name, "precisely");
	strcpy(greeting, "hello, ");
	strcat(greeting, name);
	printf("%s\n", greeting);
	fflush(stdout);
	for (volatile int i = 0; i <= 10; i++)
		name[i] = '-';
}

/* ---- stack smashing: watch the return address ---- */

static void smashed(const struct ulpf_hit *hit, void *data)
{
	(void)data;
	say("return address overwritten, byte", (long)((char *)hit->addr - (char *)data));
	/* Before the function returns through it. */
	_exit(3);
}
static void __attribute__((noinline)) copy(volatile char *to, const char *from)
{
	while ((*to++ = *from++))
		;
}
static void __attribute__((noinline, optimize("no-stack-protector"))) greet(const char *name)
{
	volatile char line[16];
	struct ulpf_watchpoint w = ULPF_WATCHPOINT_INIT;
	w.addr = __builtin_frame_address(0) + 8;
	w.len = 8;
	w.handler = smashed;
	w.data = w.addr;
	long id;
	if (ulpf_insert(&w, 1, &id) < 0)
		fprintf(stderr, "%s\n", ulpf_error()), exit(1);
	copy(line, name);
	delete_watchpoint(id);
	say("greeted, letters:", strlen((char *)line));
}
static void smash(void)
{
	greet("Ada");
	greet("a name that is far longer than anybody thought");
}

/* ---- memory leak: what has not been touched for long ---- */

static uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}
static void leak(void)
{
	enum { OBJECTS = 50 };
	struct ulpf_watchpoint w[OBJECTS];
	long ids[OBJECTS];
	int *objects[OBJECTS];
	for (int i = 0; i < OBJECTS; i++) {
		objects[i] = calloc(1, 100);
		w[i] = (struct ulpf_watchpoint)ULPF_WATCHPOINT_INIT;
		w[i].addr = objects[i];
		w[i].len = 100;
		w[i].access = ULPF_ACCESS;
	}
	if (ulpf_insert(w, OBJECTS, ids) < 0)
		fprintf(stderr, "%s\n", ulpf_error()), exit(1);
	uint64_t since = now();
	for (int round = 0; round < 3; round++)
		for (int i = 0; i < OBJECTS; i++)
			if (i % 10 != 7) /* the forgotten ones */
				++*(volatile int *)objects[i];
	for (int i = 0; i < OBJECTS; i++) {
		struct ulpf_counts c;
		ulpf_watchpoint_counts(ids[i], &c);
		if (c.last < since)
			printf("leaked? object %d, %lu accesses\n", i, c.hits);
	}
}

/* ---- invariant violation: a variable with a rule ---- */

struct account { long balance, limit; };

static void check(const struct ulpf_hit *hit, void *data)
{
	struct account *a = data;
	long was;
	memcpy(&was, hit->old_value, sizeof was);
	if (a->balance < -a->limit) {
		say("balance below the limit:", a->balance);
		say("it was", was);
	}
}
static void invariant(void)
{
	struct account *a = calloc(1, sizeof *a);
	a->limit = 100;
	struct ulpf_watchpoint w = ULPF_WATCHPOINT_INIT;
	w.addr = &a->balance;
	w.len = sizeof a->balance;
	w.flags = ULPF_CHANGED;
	w.handler = check;
	w.data = a;
	if (ulpf_insert(&w, 1, NULL) < 0)
		fprintf(stderr, "%s\n", ulpf_error()), exit(1);
	static const long payments[] = { 50, -120, 0, -60, 200 };
	for (int i = 0; i < 5; i++)
		*(volatile long *)&a->balance += payments[i];
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	if (!strcmp(what, "overflow"))
		overflow();
	else if (!strcmp(what, "smash"))
		smash();
	else if (!strcmp(what, "leak"))
		leak();
	else if (!strcmp(what, "invariant"))
		invariant();
	else
		return fprintf(stderr, "usage: sentry overflow|smash|leak|invariant\n"), 2;
	return 0;
}
