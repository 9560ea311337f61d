/* Changes what it may, at random (`rights SEED CALLS`): after each call it says what it called and what came of it, and waits
   for a line on standard input. Everything is from the seed. `counter` is stored to after each call. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

volatile long counter;
static unsigned long long state;

static unsigned pick(unsigned n)
{
	state = state * 6364136223846793005ULL + 1442695040888963407ULL;
	return (state >> 33) % n;
}

static unsigned id(void)
{
	static const unsigned ids[] = { 0, 1000, 65534, 54321, -1 };
	return ids[pick(5)];
}

static long keep(unsigned long long permitted, unsigned long long effective)
{
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct data[2];
	if (syscall(SYS_capget, &header, data))
		return -1;
	for (int half = 0; half < 2; half++) {
		data[half].permitted &= permitted >> 32 * half;
		data[half].effective &= data[half].permitted & effective >> 32 * half;
		data[half].inheritable &= data[half].permitted;
	}
	return syscall(SYS_capset, &header, data);
}

static long domain(void)
{
	unsigned long long handled = 1; /* LANDLOCK_ACCESS_FS_EXECUTE */
	int rules = syscall(444, &handled, sizeof handled, 0);
	if (rules < 0)
		return rules;
	long result = syscall(446, rules, 0);
	int error = errno;
	close(rules);
	errno = error;
	return result;
}

/* The 32-bit call of the same meaning. */
static long int80(long nr, long a, long b, long c)
{
	long result;
	asm volatile("int $0x80" : "=a"(result) : "0"(nr), "b"(a), "c"(b), "d"(c) : "memory", "r8", "r9", "r10", "r11");
	if (result < 0) {
		errno = -result;
		return -1;
	}
	return result;
}

static long call(char *name)
{
	static const int spaces[] = { CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWNET, CLONE_NEWCGROUP, CLONE_NEWUSER, CLONE_FS };
	gid_t groups[3] = { id(), id(), id() };
	unsigned long long bits = (unsigned long long)pick(1u << 31) << 20 | pick(1u << 20);
	switch (pick(21)) {
	case 0: sprintf(name, "setuid"); return syscall(SYS_setuid, id());
	case 1: sprintf(name, "setgid"); return syscall(SYS_setgid, id());
	case 2: sprintf(name, "setreuid"); return syscall(SYS_setreuid, id(), id());
	case 3: sprintf(name, "setregid"); return syscall(SYS_setregid, id(), id());
	case 4: sprintf(name, "setresuid"); return syscall(SYS_setresuid, id(), id(), id());
	case 5: sprintf(name, "setresgid"); return syscall(SYS_setresgid, id(), id(), id());
	case 6: sprintf(name, "setfsuid"); return syscall(SYS_setfsuid, id());
	case 7: sprintf(name, "setfsgid"); return syscall(SYS_setfsgid, id());
	case 8: sprintf(name, "setgroups"); return syscall(SYS_setgroups, pick(4), groups);
	case 9: sprintf(name, "capset"); return keep(bits | 1 << 7 | 1 << 6, bits);
	case 10: sprintf(name, "effective"); return keep(-1, bits);
	case 11: sprintf(name, "bounding"); return prctl(PR_CAPBSET_DROP, pick(40), 0, 0, 0);
	case 12: sprintf(name, "securebits"); return prctl(PR_SET_SECUREBITS, pick(64) & pick(64), 0, 0, 0);
	case 13: sprintf(name, "keepcaps"); return prctl(PR_SET_KEEPCAPS, pick(2), 0, 0, 0);
	case 14: sprintf(name, "ambient"); return prctl(PR_CAP_AMBIENT, pick(2) ? PR_CAP_AMBIENT_RAISE : PR_CAP_AMBIENT_LOWER, pick(40), 0, 0);
	case 15: sprintf(name, "no_new_privs"); return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	case 16: sprintf(name, "chroot"); return chroot(pick(2) ? "/tmp" : "/proc/self/fdinfo");
	case 17: {
		int flags = spaces[pick(7)] | (pick(3) ? 0 : spaces[pick(5)]);
		sprintf(name, "unshare %#x", flags);
		return unshare(flags);
	}
	case 18: {
		struct rlimit limit;
		static const int which[] = { RLIMIT_CORE, RLIMIT_STACK, RLIMIT_NICE, RLIMIT_MSGQUEUE };
		int at = which[pick(4)];
		getrlimit(at, &limit);
		limit.rlim_cur = limit.rlim_max = limit.rlim_max == RLIM_INFINITY ? 64 << 20 : limit.rlim_max / 2;
		sprintf(name, "setrlimit %d", at);
		return setrlimit(at, &limit);
	}
	case 19: sprintf(name, "int80 setresuid"); return int80(208, id(), id(), id());
	default: sprintf(name, "landlock"); return domain();
	}
}

struct work { int calls; };

static void *work(void *arg)
{
	struct work *work = arg;
	for (int n = 0; n < work->calls; n++) {
		char name[64];
		errno = 0;
		long result = call(name);
		int error = errno;
		counter++;
		printf("%d %s %ld %d\n", n, name, result, result < 0 ? error : 0);
		if (getchar() == EOF)
			exit(3);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	struct work mine = { argc > 2 ? atoi(argv[2]) : 10 };
	state = argc > 1 ? strtoull(argv[1], NULL, 10) * 0x9e3779b97f4a7c15ULL : 1;
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc > 3) { /* in a thread that is not the first one */
		pthread_t other;
		pthread_create(&other, NULL, work, &mine);
		pthread_join(other, NULL);
	} else {
		work(&mine);
	}
	printf("end %ld\n", counter);
	return 0;
}
