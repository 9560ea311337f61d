/* Shortages: each has an errno of its own, and the library continues. Signals at the wrong moment. */
#include "checks.h"
#include <sys/resource.h>

static void limit(int which, rlim_t soft)
{
	struct rlimit now;
	getrlimit(which, &now);
	now.rlim_cur = soft;
	CHECK(setrlimit(which, &now) == 0, "%s", strerror(errno));
}

static rlim_t mapped(void)
{
	unsigned long pages = 0;
	FILE *file = fopen("/proc/self/statm", "r");
	CHECK(file && fscanf(file, "%lu", &pages) == 1, "statm");
	fclose(file);
	return pages * PAGE;
}

static int refused_with;
static pthread_barrier_t together;
static void *begins(void *unused)
{
	(void)unused;
	if (ulpf_thread_init() < 0)
		__atomic_store_n(&refused_with, errno, __ATOMIC_SEQ_CST);
	pthread_barrier_wait(&together);
	return NULL;
}

/* Without address space; then with room for few threads' stacks. */
CASE(no_room)
{
	WITH_THE_USUAL_BACKEND();
	char *p = pages(1);
	limit(RLIMIT_AS, mapped() + (60ul << 20));
	REFUSED(insert_watchpoint(p, 8, ULPF_WRITE), ENOMEM);
	CHECK(strstr(ulpf_error(), "ulimit -v"), "%s", ulpf_error());
	limit(RLIMIT_AS, RLIM_INFINITY);
	OK(insert_watchpoint(p, 8, ULPF_WRITE));
	enum { THREADS = 40 };
	pthread_t threads[THREADS];
	pthread_barrier_init(&together, NULL, THREADS);
	for (int round = 0; round < 2; round++) {
		refused_with = 0;
		for (int i = 0; i < THREADS; i++)
			CHECK(pthread_create(&threads[i], NULL, begins, NULL) == 0, "%d", i);
		for (int i = 0; i < THREADS; i++)
			pthread_join(threads[i], NULL);
		EQ(refused_with, EAGAIN);
	}
	/* The stacks of ended threads can be used by others. */
	pthread_barrier_init(&together, NULL, 1);
	refused_with = 0;
	CHECK(pthread_create(&threads[0], NULL, begins, NULL) == 0, "one");
	pthread_join(threads[0], NULL);
	EQ(refused_with, 0);
}

static char *place;
static int refused, arrived, done;
enum { ENOUGH = 2000, MOMENT = 20000 };
static void in_between(int signal)
{
	(void)signal;
	int before = errno;
	long id = insert_watchpoint(place + PAGE, 8, ULPF_WRITE);
	place[PAGE] = 1;
	refused += id <= 0 || delete_watchpoint(id) < 0;
	__atomic_add_fetch(&arrived, 1, __ATOMIC_SEQ_CST);
	errno = before;
}
static void *disturbs(void *thread)
{
	for (unsigned moment = 1; !__atomic_load_n(&done, __ATOMIC_SEQ_CST); moment = moment * 1103515245 + 12345) {
		int before = __atomic_load_n(&arrived, __ATOMIC_SEQ_CST);
		pthread_kill(*(pthread_t *)thread, SIGTRAP);
		while (__atomic_load_n(&arrived, __ATOMIC_SEQ_CST) == before && !__atomic_load_n(&done, __ATOMIC_SEQ_CST))
			sched_yield();
		for (volatile unsigned i = 0; i < (moment >> 8) % MOMENT; i++)
			;
	}
	return NULL;
}

/*
 * A handler that changes watches, for signals that come into changes and served faults, at any moment: it runs behind
 * these. Each signal waits for the one before: if they came faster than handlers return, nothing else would run.
 */
CASE(sent_at_bad_moments)
{
	WITH_THE_USUAL_BACKEND();
	place = pages(2);
	struct sigaction action = { .sa_handler = in_between };
	sigaction(SIGTRAP, &action, NULL);
	OK(insert_watchpoint(place + 64, 8, ULPF_WRITE));
	pthread_t me = pthread_self(), other;
	pthread_create(&other, NULL, disturbs, &me);
	while (__atomic_load_n(&arrived, __ATOMIC_SEQ_CST) < ENOUGH) {
		long id = insert_watchpoint(place, 8, ULPF_WRITE);
		OK(id);
		place[64]++;
		OK(delete_watchpoint(id));
	}
	__atomic_store_n(&done, 1, __ATOMIC_SEQ_CST);
	pthread_join(other, NULL);
	EQ(refused, 0);
}

/* First no descriptors are left; then the program closes descriptors of the library. */
CASE(descriptors_gone)
{
	WITH_THE_USUAL_BACKEND();
	char *p = pages(2);
	OK(insert_watchpoint(p, 8, ULPF_WRITE));
	limit(RLIMIT_NOFILE, 0);
	REFUSED(insert_watchpoint(p + PAGE, 8, ULPF_WRITE), EIO);
	limit(RLIMIT_NOFILE, 256);
	OK(insert_watchpoint(p + PAGE, 8, ULPF_WRITE));
	int closed = 0;
	for (int fd = 0; fd < 256; fd++) {
		char link[64], name[64];
		snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
		ssize_t n = readlink(link, name, sizeof name - 1);
		if (n > 0 && !strncmp(name, "/memfd:ulpf ", 12))
			closed += close(fd) == 0;
	}
	EQ(closed, 1);
	REFUSED(insert_watchpoint(p, 1, ULPF_WRITE), EBADF);
	CHECK(strstr(ulpf_error(), "descriptor"), "%s", ulpf_error());
	/* Guarded memory stays guarded. */
	p[0] = 1;
	EQ(p[0], 1);
}

CASE(too_many)
{
	WITH_THE_USUAL_BACKEND();
	enum { MANY = 1 << 20 };
	char *p = pages(1);
	struct ulpf_watchpoint *all = calloc(MANY, sizeof *all);
	struct ulpf_watchpoint one = ULPF_WATCHPOINT_INIT;
	one.addr = p, one.len = 1;
	for (int i = 0; i < MANY; i++)
		all[i] = one;
	REFUSED(ulpf_insert(all, MANY, NULL), ENOSPC);
	p[0] = 1;
	EQ(stats().faults, 0);
	OK(ulpf_insert(all, 100, NULL));
	free(all);
}

CASE(no_such_machine)
{
	WITH_THE_USUAL_BACKEND();
	if (access("/dev/ulpf", F_OK) == 0)
		SKIP("this machine has the module");
	REFUSED(ulpf_use_backend("device"), ENODEV);
	CHECK(strstr(ulpf_error(), "/dev/ulpf"), "%s", ulpf_error());
}
