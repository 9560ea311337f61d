/* Guarded memory in system calls. */
#include "checks.h"
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>

static int fds[2];
static struct ulpf_hit seen;
static char old_value[64], new_value[64];
static void note(const struct ulpf_hit *hit, void *data)
{
	(void)data;
	calls++;
	seen = *hit;
	memcpy(old_value, hit->old_value, hit->value_len);
	memcpy(new_value, hit->new_value, hit->value_len);
}

/* The kernel fills guarded memory by the C library's functions, and that is a hit of what it touches. */
CASE(calls_read)
{
	target = pages(4);
	strcpy((char *)target + PAGE + 100, "before");
	OK(ulpf_set_handler(note, NULL));
	long id = insert_watchpoint((void *)(target + PAGE + 100), 8, ULPF_WRITE);
	OK(id);
	EQ(pipe(fds), 0);
	char *text = pages(4);
	for (int i = 0; i < 3 * PAGE; i++)
		text[i] = 'a' + i % 26;
	/* A buffer that begins before the page and ends in the watched bytes. */
	EQ(write(fds[1], text, PAGE + 103), PAGE + 103);
	EQ(read(fds[0], (void *)target, 3 * PAGE), PAGE + 103);
	CHECK(!memcmp((void *)target, text, PAGE + 103), "something else was read");
	EQ(strcmp((char *)target + PAGE + 103, "ore"), 0);
	EQ(calls, 1);
	EQ(seen.watch, id);
	EQ(seen.addr, target + PAGE + 100);
	EQ(seen.len, 3);
	EQ(seen.access, ULPF_WRITE);
	EQ(seen.syscall, SYS_read);
	EQ(seen.context, NULL);
	EQ(seen.pc, read);
	EQ(seen.thread, gettid());
	CHECK(!memcmp(old_value, "bef", 3) && !memcmp(new_value, text + PAGE + 100, 3), "%.3s, %.3s", old_value, new_value);
	/* Beside the watch: no hit. Across pages that are guarded and pages that are not. */
	EQ(write(fds[1], text, 50), 50);
	EQ(read(fds[0], (void *)(target + PAGE), 50), 50);
	EQ(calls, 1);
	/* In other ways, each a hit of the whole. */
	char *at = (char *)target + PAGE + 100;
	int file = open("/tmp", O_TMPFILE | O_RDWR, 0600), sockets[2];
	EQ(socketpair(AF_UNIX, SOCK_DGRAM, 0, sockets), 0);
	CHECK(file >= 0, "open");
	EQ(pwrite(file, text, 2000, 0), 2000);
	EQ(pread(file, at, 8, 13), 8);
	CHECK(!memcmp(at, text + 13, 8), "pread: %.8s", at);
	EQ(seen.syscall, SYS_pread64);
	char half[4];
	struct iovec v[3] = { { half, 4 }, { at, 5 }, { at - 200, 3 } };
	EQ(lseek(file, 0, SEEK_SET), 0);
	EQ(readv(file, v, 3), 12);
	CHECK(!memcmp(half, text, 4) && !memcmp(at, text + 4, 5) && !memcmp(at - 200, text + 9, 3), "readv");
	EQ(seen.syscall, SYS_readv);
	EQ(seen.len, 5);
	EQ(send(sockets[0], "datagram", 8, 0), 8);
	EQ(recv(sockets[1], at, 100, 0), 8);
	CHECK(!memcmp(at, "datagram", 8), "recv: %.8s", at);
	EQ(send(sockets[0], "and more", 8, 0), 8);
	struct msghdr m = { .msg_iov = v + 1, .msg_iovlen = 1 };
	EQ(recvmsg(sockets[1], &m, 0), 5);
	CHECK(!memcmp(at, "and mram", 8), "recvmsg: %.8s", at);
	EQ(m.msg_flags & MSG_TRUNC, MSG_TRUNC);
	EQ(seen.syscall, SYS_recvmsg);
	EQ(calls, 5);
	EQ(counts(id).hits, 5);
	/* A call that fails changes nothing, and sets errno as usual. */
	errno = 0;
	EQ(read(-1, at, 8), -1);
	EQ(errno, EBADF);
	EQ(read(open("/dev/null", O_RDONLY), at, 8), 0);
	CHECK(!memcmp(at, "and mram", 8), "%.8s", at);
	EQ(calls, 5);
}

CASE(calls_write)
{
	/* Only what forbids reads concerns a call that reads. */
	target = pages(3);
	strcpy((char *)target + PAGE, "to be read");
	OK(ulpf_set_handler(note, NULL));
	long id = insert_watchpoint((void *)(target + PAGE), 5, ULPF_READ);
	OK(id);
	int sockets[2];
	EQ(pipe(fds), 0);
	EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
	char got[32] = "";
	EQ(write(fds[1], (char *)target + PAGE + 3, 7), 7);
	EQ(read(fds[0], got, 32), 7);
	EQ(strcmp(got, "be read"), 0);
	EQ(calls, 1);
	EQ(seen.syscall, SYS_write);
	EQ(seen.len, 2);
	EQ(seen.access, ULPF_READ);
	EQ(send(sockets[0], (char *)target + PAGE, 2, 0), 2);
	struct iovec v[2] = { { "one ", 4 }, { (char *)target + PAGE, 6 } };
	EQ(writev(sockets[0], v, 2), 10);
	struct msghdr m = { .msg_iov = v, .msg_iovlen = 2 };
	EQ(sendmsg(sockets[0], &m, 0), 10);
	EQ(read(sockets[1], got, 32), 22);
	CHECK(!memcmp(got, "toone to be one to be ", 22), "%.22s", got);
	EQ(counts(id).hits, 4);
	EQ(calls, 4);
}

/* Calls that the C library does not wrap fail. The error can be explained, and nothing is lost. */
CASE(system_calls)
{
	NOT_WITH("device");
	target = pages(3);
	long id = insert_watchpoint((void *)(target + PAGE), 64, ULPF_WRITE);
	OK(id);
	EQ(pipe(fds), 0);
	EQ(write(fds[1], "hello", 5), 5);
	EQ(syscall(SYS_read, fds[0], (void *)(target + PAGE), 5), -1);
	EQ(errno, EFAULT);
	EQ(ulpf_is_guarded((void *)(target + PAGE), 5, ULPF_WRITE), 1);
	CHECK(strstr(ulpf_error(), "ulpf_alias"), "%s", ulpf_error());
	EQ(ulpf_is_guarded((void *)(target + PAGE), 5, ULPF_READ), 0);
	EQ(ulpf_is_guarded((void *)target, PAGE, ULPF_WRITE), 0);
	EQ(ulpf_is_guarded((void *)target, PAGE + 1, ULPF_WRITE), 1);
	REFUSED(ulpf_is_guarded((void *)target, 1, 0), EINVAL);
	char *alias = ulpf_alias((void *)(target + PAGE), 64);
	CHECK(alias && alias != target + PAGE, "%p", alias);
	EQ(syscall(SYS_read, fds[0], alias, 5), 5);
	CHECK(!memcmp((char *)target + PAGE, "hello", 5), "%.5s", (char *)target + PAGE);
	EQ(fstat(fds[0], (struct stat *)(target + PAGE + 1024)), -1);
	EQ(errno, EFAULT);
	EQ(fstat(fds[0], ulpf_alias((void *)(target + PAGE + 1024), sizeof(struct stat))), 0);
	EQ(((struct stat *)(target + PAGE + 1024))->st_mode & S_IFMT, S_IFIFO);
	EQ(counts(id).hits, 0);
	/* Reading under a write watch, and neighbours, work as ever. */
	EQ(write(fds[1], (char *)target + PAGE, 5), 5);
	EQ(read(fds[0], (char *)target, 5), 5);
	char *elsewhere = malloc(10);
	CHECK(ulpf_alias(elsewhere, 10) == elsewhere, "an unguarded buffer is its own alias");
	/* Memory that the program itself may not write to is EFAULT, guarded or not. */
	EQ(write(fds[1], "x", 1), 1);
	char *volatile nowhere = NULL;
	EQ(read(fds[0], nowhere, 1), -1);
	EQ(errno, EFAULT);
}

/* The device opens the page for the call, and counts. */
CASE(device_calls)
{
	NEED_BACKEND("device");
	target = pages(3);
	long id = insert_watchpoint((void *)(target + PAGE), 64, ULPF_WRITE);
	OK(id);
	OK(ulpf_set_handler(note, NULL));
	EQ(pipe(fds), 0);
	EQ(write(fds[1], "hello, device", 13), 13);
	EQ(stats().kernel, 0);
	EQ(syscall(SYS_read, fds[0], (void *)(target + PAGE), 5), 5);
	CHECK(!memcmp((char *)target + PAGE, "hello", 5), "%.5s", (char *)target + PAGE);
	EQ(fstat(fds[0], (struct stat *)(target + PAGE + 1024)), 0);
	EQ(stats().kernel, 2);
	EQ(counts(id).hits, 0);
	/* By the C library's functions it is a hit. */
	EQ(read(fds[0], (void *)(target + PAGE + 10), 8), 8);
	EQ(calls, 1);
	EQ(seen.syscall, SYS_read);
	EQ(counts(id).hits, 1);
	EQ(stats().kernel, 2);
	target[PAGE] = 1;
	EQ(counts(id).hits, 2);
	CHECK(!strcmp(ulpf_backend_name(), "device"), "%s", ulpf_backend_name());
}

/* With keys a thread may let itself through, and no other thread. */
static void *store(void *arg)
{
	*(volatile char *)arg = 3;
	return NULL;
}
CASE(keys_suspend)
{
	NEED_BACKEND("protection-keys");
	target = pages(1);
	long id = insert_watchpoint((void *)target, 8, ULPF_ACCESS);
	OK(id);
	target[0] = 1;
	EQ(counts(id).hits, 1);
	OK(ulpf_suspend());
	for (int i = 0; i < 100; i++)
		target[i % 8]++;
	pthread_t other;
	pthread_create(&other, NULL, store, (void *)target);
	pthread_join(other, NULL);
	EQ(pipe(fds), 0);
	EQ(write(fds[1], "two reads, of 8 bytes", 16), 16);
	EQ(syscall(SYS_read, fds[0], target, 8), 8);
	OK(ulpf_resume());
	EQ(syscall(SYS_read, fds[0], target, 8), -1);
	EQ(errno, EFAULT);
	target[0] = 2;
	EQ(counts(id).hits, 2);
}

/* Watches can be changed during a blocking call. The call uses the watches at the time of its return. */
static void *changer(void *arg)
{
	(void)arg;
	for (int i = 0; i < 50; i++) {
		long more = insert_watchpoint((void *)(target + 2 * PAGE), 8, ULPF_ACCESS);
		OK(more);
		OK(delete_watchpoint(more));
	}
	OK(ulpf_unregister());
	OK(insert_watchpoint((void *)(target + 8), 1, ULPF_WRITE));
	EQ(write(fds[1], "0123456789", 10), 10);
	return NULL;
}
CASE(calls_block)
{
	target = pages(3);
	OK(insert_watchpoint((void *)target, 8, ULPF_WRITE));
	OK(ulpf_set_handler(note, NULL));
	EQ(pipe(fds), 0);
	pthread_t other;
	pthread_create(&other, NULL, changer, NULL);
	EQ(read(fds[0], (void *)target, 100), 10);
	pthread_join(other, NULL);
	CHECK(!memcmp((void *)target, "0123456789", 10), "%.10s", (char *)target);
	EQ(calls, 0); /* unregister ends the handler, too */
}

static void *reader(void *arg)
{
	ssize_t n = read(fds[0], arg, 8);
	CHECK(0, "read %zd", n);
	return NULL;
}
static volatile int in_handler;
static void on_usr1(int signo)
{
	in_handler += signo;
}
static void *interrupted(void *arg)
{
	EQ(read(fds[0], arg, 8), -1);
	EQ(errno, EINTR);
	return NULL;
}
CASE(calls_end)
{
	/* Cancelled, or interrupted, in a call that blocks. */
	target = pages(1);
	OK(insert_watchpoint((void *)target, 8, ULPF_WRITE));
	EQ(pipe(fds), 0);
	pthread_t thread;
	void *result;
	pthread_create(&thread, NULL, reader, (void *)target);
	usleep(20000);
	EQ(pthread_cancel(thread), 0);
	EQ(pthread_join(thread, &result), 0);
	CHECK(result == PTHREAD_CANCELED, "%p", result);
	struct sigaction sa = { .sa_handler = on_usr1 };
	sigaction(SIGUSR1, &sa, NULL);
	pthread_create(&thread, NULL, interrupted, (void *)target);
	while (!in_handler) {
		usleep(20000);
		pthread_kill(thread, SIGUSR1);
	}
	EQ(pthread_join(thread, NULL), 0);
	target[0] = 1;
	EQ(stats().faults, 1);
}
