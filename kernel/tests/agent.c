// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Counterpart of tests/lib/guest.py: runs commands in the test machine, one at a time. It also
 * relays the bytes between a debugger outside and a server inside.
 *
 * On the second serial port lines come in, answers go out:
 *     run|SOCKET|WORD|WORD...	starts the command. SOCKET: where it will listen ("": nowhere);
 *				"ready" when that is connected with the third port
 *     leave			its client has gone: the socket is closed
 *     kill			ends it
 *     end			ends the agent
 *   When a command has ended: "ended STATUS OUT ERR", the status as wait(2) has it, and how many
 *   bytes of standard output and error follow.
 */
#include "test.h"

#include <linux/serial.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <termios.h>

#define WORDS 64

static int control, data;

/* The first serial port from this one on that there is. */
static int serial(int number)
{
	struct serial_struct port;
	struct termios settings;
	char path[32];
	int fd;

	for (;; number++) {
		snprintf(path, sizeof(path), "/dev/ttyS%d", number);
		fd = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
		if (fd < 0) {
			perror(path);
			exit(1);
		}
		if (!ioctl(fd, TIOCGSERIAL, &port) && port.type != PORT_UNKNOWN && !tcgetattr(fd, &settings))
			break;
		close(fd);
	}
	cfmakeraw(&settings);
	cfsetspeed(&settings, B115200);
	tcsetattr(fd, TCSANOW, &settings);
	return fd;
}

/* To the debugger only until something else is wanted: it may have gone. */
static void all(int fd, const char *from, size_t length)
{
	while (length) {
		ssize_t done = write(fd, from, length);
		struct pollfd wait[2] = { { .fd = fd, .events = POLLOUT }, { .fd = control, .events = POLLIN } };

		if (done < 0 && errno != EINTR && errno != EAGAIN)
			return;
		if (done > 0) {
			from += done;
			length -= done;
		} else if (poll(wait, fd == data ? 2 : 1, -1) > 0 && fd == data && wait[1].revents) {
			return;
		}
	}
}

/* Reads a line; false at the end. */
static bool line(char *to, size_t size)
{
	size_t length = 0;

	while (length + 1 < size && read(control, to + length, 1) == 1) {
		if (to[length] == '\n') {
			to[length] = 0;
			return true;
		}
		length++;
	}
	return false;
}

static void content(const char *path)
{
	static char buffer[1 << 16];
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t got;

	while ((got = read(fd, buffer, sizeof(buffer))) > 0)
		all(control, buffer, got);
	close(fd);
}

static pid_t start(char **words)
{
	pid_t pid = fork();

	if (!pid) {
		setsid();
		dup2(open("/dev/null", O_RDWR), 0);
		dup2(open("/tmp/out", O_WRONLY | O_CREAT | O_TRUNC, 0600), 1);
		dup2(open("/tmp/err", O_WRONLY | O_CREAT | O_TRUNC, 0600), 2);
		setenv("PATH", "/usr/bin:/bin", 1);
		execv(words[0], words);
		perror(words[0]);
		_exit(127);
	}
	return pid;
}

static int connected(const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	strncpy(address.sun_path, path, sizeof(address.sun_path) - 1);
	if (!connect(fd, (struct sockaddr *)&address, sizeof(address)))
		return fd;
	close(fd);
	return -1;
}

static bool carry(int from, int to)
{
	char buffer[4096];
	ssize_t got = read(from, buffer, sizeof(buffer));

	if (got > 0)
		all(to, buffer, got);
	return got > 0;
}

static void run(char **words)
{
	const char *path = words[0];
	struct stat out = { 0 }, err = { 0 };
	struct pollfd wait[3];
	int peer = -1, status;
	char text[128];
	pid_t pid;

	unlink(path);
	tcflush(data, TCIOFLUSH);
	pid = start(words + 1);
	while (!waitpid(pid, &status, WNOHANG)) {
		if (peer < 0 && path[0]) {
			peer = connected(path);
			if (peer >= 0) {
				path = "";
				all(control, "ready\n", 6);
			}
		}
		wait[0] = (struct pollfd){ .fd = control, .events = POLLIN };
		wait[1] = (struct pollfd){ .fd = peer, .events = POLLIN };
		wait[2] = (struct pollfd){ .fd = peer < 0 ? -1 : data, .events = POLLIN };
		poll(wait, 3, 20);
		text[0] = 0;
		if (wait[0].revents && (!line(text, sizeof(text)) || !strcmp(text, "kill")))
			kill(-1, SIGKILL);
		if (peer >= 0 && (!strcmp(text, "leave") || (wait[1].revents && !carry(peer, data)))) {
			close(peer);
			peer = -1;
		}
		if (peer >= 0 && wait[2].revents)
			carry(data, peer);
	}
	while (peer >= 0 && carry(peer, data))
		;
	close(peer);
	stat("/tmp/out", &out);
	stat("/tmp/err", &err);
	snprintf(text, sizeof(text), "ended %d %lld %lld\n", status, (long long)out.st_size, (long long)err.st_size);
	all(control, text, strlen(text));
	content("/tmp/out");
	content("/tmp/err");
}

int main(void)
{
	static char text[1 << 16];

	/* Unicorn reserves a gigabyte, and uses little of it. */
	int overcommit = open("/proc/sys/vm/overcommit_memory", O_WRONLY | O_CLOEXEC);

	if (overcommit >= 0 && write(overcommit, "1", 1) != 1)
		perror("overcommit_memory");
	close(overcommit);
	control = serial(1);
	data = serial(2);
	fcntl(data, F_SETFL, O_NONBLOCK);
	all(control, "here\n", 5);
	while (line(text, sizeof(text)) && strcmp(text, "end")) {
		char *words[WORDS + 1] = { NULL }, *rest = text;
		int count = 0;

		if (strncmp(text, "run|", 4))
			continue;	/* for a command that has ended */
		strsep(&rest, "|");
		while (rest && count < WORDS)
			words[count++] = strsep(&rest, "|");
		if (count > 1)
			run(words);
	}
	return 0;
}
