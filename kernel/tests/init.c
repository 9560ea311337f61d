// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The first, and only, process of the test machine. Loads the module if the machine was given one, and
 * runs the programs that the kernel's command line names (ulpf.run=a,b). Then it unloads the module and
 * checks whether the kernel has complained. The last line is "ulpf-vm: ok" or "ulpf-vm: failed".
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/klog.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Expected taint: an out-of-tree module, without a signature. */
#define TAINT_ALLOWED ((1 << 12) | (1 << 13))

static int failures;

static void complain(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	printf("ulpf-vm: ");
	vprintf(format, args);
	printf("\n");
	va_end(args);
	failures++;
}

static void file_text(const char *path, char *text, size_t size)
{
	int fd = open(path, O_RDONLY);
	ssize_t got = fd < 0 ? -1 : read(fd, text, size - 1);

	text[got < 0 ? 0 : got] = 0;
	if (fd >= 0)
		close(fd);
}

static unsigned long number_in(const char *path)
{
	char text[64];

	file_text(path, text, sizeof(text));
	return strtoul(text, NULL, 0);
}

static void set_early(const char *yes_or_no)
{
	int fd = open("/sys/module/ulpf/parameters/early", O_WRONLY | O_CLOEXEC);

	/* A kernel that cannot trace functions has no other way than the late one. */
	if (fd < 0)
		return;
	if (write(fd, yes_or_no, 1) != 1)
		complain("the module's parameter `early` cannot be set");
	close(fd);
}

/* NAME, or NAME@late: with upcalls from ->fault and ->page_mkwrite only. */
static void run(const char *name)
{
	int length = strcspn(name, "@"), status;
	char path[128];
	pid_t pid;

	snprintf(path, sizeof(path), "/tests/%.*s", length, name);
	set_early(name[length] ? "N" : "Y");
	printf("ulpf-vm: begin %s\n", name);
	fflush(stdout);
	pid = fork();
	if (!pid) {
		execl(path, path, (char *)NULL);
		_exit(127);
	}
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		complain("%s ended with status 0x%x", name, status);
	printf("ulpf-vm: end %s\n", name);
}

/* By default the module traces no function: the administrator enables that. */
static void look_at_early(void)
{
	char text[8];

	file_text("/sys/module/ulpf/parameters/early", text, sizeof(text));
	if (*text && *text != 'N')
		complain("the module's parameter `early` is not off by default");
}

static int load_module(const char *path, const char *parameters)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	int result = syscall(SYS_finit_module, fd, parameters, 0);

	close(fd);
	return result;
}

static int load(void)
{
	return load_module("/ulpf.ko", "mode=0666");
}

/* The machine's own drivers, in the order of their names, if it was given any. */
static void load_drivers(void)
{
	struct dirent **found;
	char path[300];
	int count = scandir("/drivers", &found, NULL, alphasort), n;

	for (n = 0; n < count; n++) {
		if (found[n]->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "/drivers/%s", found[n]->d_name);
		if (load_module(path, ""))
			complain("%s does not load: %s", path, strerror(errno));
	}
}

/* Addresses as QEMU's user network expects them. */
static void network(const char *name, const char *address, const char *mask)
{
	struct sockaddr_in *in;
	struct ifreq request;
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	memset(&request, 0, sizeof(request));
	strncpy(request.ifr_name, name, sizeof(request.ifr_name) - 1);
	in = (struct sockaddr_in *)&request.ifr_addr;
	in->sin_family = AF_INET;
	inet_pton(AF_INET, address, &in->sin_addr);
	if (!ioctl(fd, SIOCSIFADDR, &request)) {
		inet_pton(AF_INET, mask, &in->sin_addr);
		ioctl(fd, SIOCSIFNETMASK, &request);
		request.ifr_flags = IFF_UP | IFF_RUNNING;
		if (ioctl(fd, SIOCSIFFLAGS, &request))
			complain("%s does not come up: %s", name, strerror(errno));
	}
	close(fd);
}

static int unload(void)
{
	return syscall(SYS_delete_module, "ulpf", O_NONBLOCK);
}

/* A file's release, and with it the module's last reference, may be a moment late. */
static int unload_patiently(void)
{
	int tries;

	for (tries = 0; tries < 100; tries++) {
		if (!unload())
			return 0;
		if (errno != EAGAIN && errno != EBUSY && errno != EWOULDBLOCK)
			return -1;
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
		usleep(50000);
	}
	return -1;
}

/*
 * kmemleak, if the kernel has it, lists memory without a pointer to it. The second scan excludes pointers
 * that were in registers.
 */
static void look_for_leaks(void)
{
	static char text[1 << 16];
	int fd, tries;

	mount("debug", "/sys/kernel/debug", "debugfs", 0, NULL);
	for (tries = 0; tries < 2; tries++) {
		fd = open("/sys/kernel/debug/kmemleak", O_RDWR);
		if (fd < 0)
			return;
		/* It does not believe that what is younger than five seconds is lost. */
		sleep(6);
		if (write(fd, "scan", 4) != 4)
			complain("kmemleak does not scan");
		close(fd);
	}
	file_text("/sys/kernel/debug/kmemleak", text, sizeof(text));
	if (*text) {
		fputs(text, stdout);
		complain("memory has leaked");
	}
}

static void show_log(void)
{
	static char text[1 << 20];
	int length = klogctl(3 /* SYSLOG_ACTION_READ_ALL */, text, sizeof(text) - 1);
	char *line;

	text[length > 0 ? length : 0] = 0;
	/* From where the module came. */
	line = strstr(text, "ulpf: loading out-of-tree");
	fputs(line ? line : text, stdout);
}

static void load_all(void)
{
	if (load())
		complain("the module does not load: %s", strerror(errno));
	look_at_early();
	if (load_module("/ulpf_reach.ko", ""))
		complain("the tests' own module does not load: %s", strerror(errno));
}

/* Unloads the module, loads it again, and unloads it. No reference may be left after the tests. */
static void unload_and_again(void)
{
	if (unload_patiently())
		complain("the module does not unload: %s", strerror(errno));
	else if (load() || unload_patiently())
		complain("the module does not load once more: %s", strerror(errno));
}

int main(void)
{
	static char command[4096];
	unsigned long taint;
	char *names, *name;
	int fd, has_module;

	mkdir("/proc", 0755);
	mkdir("/sys", 0755);
	mkdir("/dev", 0755);
	mkdir("/tmp", 01777);
	mount("proc", "/proc", "proc", 0, NULL);
	mount("sys", "/sys", "sysfs", 0, NULL);
	mount("dev", "/dev", "devtmpfs", 0, NULL);
	mount("tmp", "/tmp", "tmpfs", 0, NULL);
	mkdir("/sys/fs/cgroup", 0755);
	mount("cgroup", "/sys/fs/cgroup", "cgroup2", 0, NULL);
	fd = open("/dev/console", O_RDWR);
	dup2(fd, 0);
	dup2(fd, 1);
	dup2(fd, 2);
	setvbuf(stdout, NULL, _IOLBF, 0);
	load_drivers();
	network("lo", "127.0.0.1", "255.0.0.0");
	network("eth0", "10.0.2.15", "255.255.255.0");

	/* With no module there is no device. */
	if (open("/dev/ulpf", O_RDWR) >= 0 || errno != ENOENT)
		complain("a device without the module");
	has_module = !access("/ulpf.ko", F_OK);
	if (has_module)
		load_all();
	file_text("/proc/cmdline", command, sizeof(command));
	names = strstr(command, "ulpf.run=");
	if (names) {
		names[strcspn(names, " \n")] = 0;
		for (name = strtok(names + strlen("ulpf.run="), ","); name; name = strtok(NULL, ","))
			run(name);
	}
	if (has_module)
		unload_and_again();
	look_for_leaks();
	taint = number_in("/proc/sys/kernel/tainted");
	if (taint & ~TAINT_ALLOWED)
		complain("the kernel is tainted: 0x%lx (0x200: a warning, 0x80: an oops)", taint);
	if (failures)
		show_log();
	printf("ulpf-vm: %s\n", failures ? "failed" : "ok");
	fflush(stdout);
	sync();
	reboot(RB_POWER_OFF);
	for (;;)
		pause();
}
