/* Cases of libulpf that are promises rather than examples; `checks NAME` runs one, and says what is wrong. */
#ifndef CHECKS_H
#define CHECKS_H

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
#define REFUSED(call, error) do { errno = 0; CHECK((call) == -1, "not refused"); \
	CHECK(errno == (error), "%s, not %s", strerrorname_np(errno), #error); \
	CHECK(strlen(ulpf_error()) > 10, "no sentence"); } while (0)

#define SKIP(...) do { printf("skip: " __VA_ARGS__); printf("\n"); exit(0); } while (0)
/* Each case states its back ends in its first line. test_backends.py runs the cases of each back end. */
/* Code that all back ends share: with another back end the case would only take time. */
#define WITH_THE_USUAL_BACKEND() do { if (getenv("ULPF_BACKEND")) SKIP("with the usual back end"); } while (0)
/* One back end, unless this machine has none. */
#define NEED_BACKEND(name) do { \
	if (getenv("ULPF_BACKEND") && strcmp(getenv("ULPF_BACKEND"), name)) SKIP("of the back end %s", name); \
	if (ulpf_use_backend(name)) SKIP("%s", ulpf_error()); } while (0)
/* All back ends but this one. */
#define NOT_WITH(name) do { if (!strcmp(getenv("ULPF_BACKEND") ?: "", name)) SKIP("not with %s", name); } while (0)

struct check { const char *name; void (*run)(void); };
/* A case; main() finds it in a section of the program. */
#define CASE(name) \
	static void name(void); \
	static const struct check check_##name = { #name, name }; \
	static const struct check *const at_##name __attribute__((section("checks"), used)) = &check_##name; \
	static void name(void)

/* One piece of zeroed memory. */
char *pages(int n);
struct ulpf_counts counts(long id);
struct ulpf_stats stats(void);
/* A handler that counts its calls. */
extern volatile long calls;
void count_call(const struct ulpf_hit *hit, void *data);

/* Shared by cases of one file, one of which runs in a process. */
extern volatile char *target;
extern volatile long caught;
extern sigjmp_buf back;

#endif
