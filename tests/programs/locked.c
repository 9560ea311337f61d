/* Memory that is locked (mlock(2)), by parts and whole: what madvise says of it, and how much the kernel counts. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/capability.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096L
long *first, *second; /* on pages that lie side by side */
static char *own;

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

static const char *told(long result)
{
	return result ? strerrorname_np(errno) : "done";
}

/* A number of /proc/self/status, in kB. */
static long number(const char *format)
{
	char line[128];
	long value = -1;
	FILE *status = fopen("/proc/self/status", "r");

	while (status && fgets(line, sizeof line, status))
		sscanf(line, format, &value);
	if (status)
		fclose(status);
	return value;
}

static void say(const char *what, const char *result)
{
	printf("%s: %s %ld %ld, %ld kB\n", what, result, *first, *second, number("VmLck: %ld"));
	fflush(stdout);
}

static void discard(const char *what)
{
	*first = 1;
	*second = 2;
	say(what, told(madvise(own, 2 * PAGE, MADV_DONTNEED)));
}

/* The limit holds for root, too. */
static void give_up_privilege(void)
{
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct data[2];

	syscall(SYS_capget, &header, data);
	data[CAP_IPC_LOCK / 32].effective &= ~(1u << CAP_IPC_LOCK % 32);
	syscall(SYS_capset, &header, data);
}

int main(void)
{
	struct rlimit limit = { 3 * PAGE, 3 * PAGE };
	int status;

	own = mmap(NULL, 6 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	first = (long *)(own + 64);
	second = (long *)(own + PAGE + 64);
	mlock(second, 8);
	ready();
	discard("second locked");
	discard("again");
	say("protected", told(mprotect(own, 2 * PAGE, PROT_READ)));
	say("unprotected", told(mprotect(own, 2 * PAGE, PROT_READ | PROT_WRITE)));
	discard("after that");
	say("unlocked", told(munlock(own, 2 * PAGE)));
	discard("nothing locked");
	say("first locked", told(mlock(first, 8)));
	discard("only the second is gone");
	say("both locked", told(mlock2(own, 2 * PAGE, MLOCK_ONFAULT)));
	discard("none is gone");
	if (fork() == 0) {
		discard("in a child");
		_exit(0);
	}
	wait(&status);
	say("parted", told(munlock(own + PAGE, PAGE)));
	discard("behind the first");
	say("with a hole", told(munmap(own + 5 * PAGE, PAGE) | mlock(own, 6 * PAGE)));
	discard("up to the hole");
	munlock(own, 5 * PAGE);

	/* Privileged: an ordinary user's limit is for all that is there, the watcher's memory too. */
	if (geteuid() == 0) {
		const char *all = told(mlockall(MCL_CURRENT));

		printf("all locked: %s, %s\n", all, number("VmRSS: %ld") < 100000 ? "little" : "too much");
		*first = 1;
		printf("all stays: %s %ld\n", told(madvise(own, PAGE, MADV_DONTNEED)), *first);
		say("nothing locked", told(munlockall()));
	}
	say("future", told(mlockall(MCL_FUTURE)));
	discard("what was there is not locked");
	say("never mind", told(munlockall()));
	setrlimit(RLIMIT_MEMLOCK, &limit);
	give_up_privilege();
	say("within the limit", told(mlock(own, 2 * PAGE)));
	say("beyond the limit", told(mlock(own + 2 * PAGE, 2 * PAGE)));
	discard("still locked");
	say("one unlocked", told(munlock(own, PAGE)));
	say("room again", told(mlock(own + 2 * PAGE, 2 * PAGE)));
	munlock(own, 5 * PAGE);
	discard("in the end");
	return 0;
}
