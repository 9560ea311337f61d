/* A great many system calls, each with its buffers in, before, behind and across the pages of `hot`.
 * Prints the result and the memory contents of every call. They are the same with a watch on `hot`. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/times.h>
#include <sys/timex.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <termios.h>
#include <unistd.h>
#include <utime.h>

#define PAGE 4096
_Alignas(PAGE) struct {
	unsigned char before[8 * PAGE], hot[2 * PAGE], behind[12 * PAGE];
	unsigned char far[30 * PAGE], alone[PAGE], last[30 * PAGE];
} arena;
#define hot arena.hot

static char dir[64], file_path[96], link_path[96];
static int file, pipes[2], sockets[2], streams[2];
static const char *where;

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

static unsigned long hash(const void *data, size_t n)
{
	unsigned long h = 0xcbf29ce484222325;
	for (size_t i = 0; i < n; i++)
		h = (h ^ ((const unsigned char *)data)[i]) * 0x100000001b3;
	return h & 0xffffffff;
}

/* One line: the result, or the error, and a sum over what is in memory now. */
static long tell(const char *name, long result, const void *data, size_t n)
{
	int error = errno;
	if (result < 0)
		printf("%-24s %-8s -1 %s %08lx\n", name, where, strerrorname_np(error), hash(data, n));
	else
		printf("%-24s %-8s %ld %08lx\n", name, where, result, hash(data, n));
	return result;
}

static void fill(unsigned char *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		p[i] = (unsigned char)(i * 7 + 1);
}

/* The call's own words in the first 16 bytes of p; strings and structures start at p + 16 … */
static void files(unsigned char *p)
{
	char *path = strcpy((char *)p, file_path);
	unsigned char *q = p + 512;
	int fd;

	tell("access", access(path, R_OK), 0, 0);
	tell("faccessat", faccessat(AT_FDCWD, path, X_OK, 0), 0, 0);
	fd = open(path, O_RDWR);
	tell("open", fd >= 0, 0, 0);
	tell("close", close(fd), 0, 0);
	fd = openat(AT_FDCWD, path, O_RDWR | O_CLOEXEC);
	tell("openat", fd >= 0, 0, 0);
	close(fd);
	struct open_how { unsigned long flags, mode, resolve; } how = { O_RDONLY, 0, 0 };
	memcpy(q, &how, sizeof(how));
	fd = syscall(SYS_openat2, AT_FDCWD, path, q, sizeof(how));
	tell("openat2", fd >= 0, q, 24);
	close(fd);
	memset(q, 0xa5, 256);
	tell("stat", syscall(SYS_stat, path, q), q + 48, 8);
	memset(q, 0xa5, 256);
	tell("lstat", syscall(SYS_lstat, path, q), q + 48, 8);
	memset(q, 0xa5, 256);
	tell("fstat", syscall(SYS_fstat, file, q), q + 24, 4);
	memset(q, 0xa5, 256);
	tell("newfstatat", syscall(SYS_newfstatat, AT_FDCWD, path, q, 0), q + 48, 8);
	memset(q, 0xa5, 256);
	tell("statx", syscall(SYS_statx, AT_FDCWD, path, 0, 0x200, q), q + 40, 8);
	memset(q, 0xa5, 256);
	tell("statfs", syscall(SYS_statfs, path, q), q, 16);
	memset(q, 0xa5, 256);
	tell("fstatfs", syscall(SYS_fstatfs, file, q), q, 16);
	tell("chmod", chmod(path, 0640), 0, 0);
	tell("fchmodat", fchmodat(AT_FDCWD, path, 0644, 0), 0, 0);
	tell("chown", chown(path, -1, -1), 0, 0);
	tell("truncate", truncate(path, 100), 0, 0);
	struct timespec times[2] = { { 100, 0 }, { 200, 0 } };
	memcpy(q, times, sizeof(times));
	tell("utimensat", utimensat(AT_FDCWD, path, (void *)q, 0), q, 32);
	memset(q, 0xa5, 144);
	syscall(SYS_stat, path, q);
	tell("utimensat: stat", 0, q + 72, 32);
	struct utimbuf ut = { 11, 22 };
	memcpy(q, &ut, sizeof(ut));
	tell("utime", syscall(SYS_utime, path, q), q, 16);
	struct timeval tv[2] = { { 5, 0 }, { 6, 0 } };
	memcpy(q, tv, sizeof(tv));
	tell("utimes", syscall(SYS_utimes, path, q), q, 32);
	strcpy((char *)q, link_path);
	tell("link", link(path, (char *)q), 0, 0);
	tell("unlink", unlink((char *)q), 0, 0);
	tell("symlink", symlink(path, (char *)q), 0, 0);
	memset(p + 1024, 0xa5, 200);
	tell("readlink", readlink((char *)q, (char *)p + 1024, 200) > 0, 0, 0);
	tell("readlinkat", readlinkat(AT_FDCWD, (char *)q, (char *)p + 1024, 10), p + 1024, 5);
	tell("rename", rename((char *)q, (char *)q), 0, 0);
	tell("renameat2", syscall(SYS_renameat2, AT_FDCWD, q, AT_FDCWD, q, RENAME_NOREPLACE), 0, 0);
	tell("unlinkat", unlinkat(AT_FDCWD, (char *)q, 0), 0, 0);
	tell("mkdir", mkdir((char *)q, 0700), 0, 0);
	tell("rmdir", rmdir((char *)q), 0, 0);
	tell("mknod", mknod((char *)q, S_IFIFO | 0600, 0), 0, 0);
	tell("unlink", unlink((char *)q), 0, 0);
	strcpy((char *)q, "user.ulpf");
	strcpy((char *)p + 1024, "value");
	tell("setxattr", setxattr(path, (char *)q, p + 1024, 5, 0), 0, 0);
	memset(p + 1024, 0xa5, 64);
	tell("getxattr", getxattr(path, (char *)q, p + 1024, 64), p + 1024, 64);
	tell("getxattr, size only", getxattr(path, (char *)q, 0, 0), 0, 0);
	tell("fgetxattr", fgetxattr(file, (char *)q, p + 1024, 64) < 100, 0, 0);
	memset(p + 1024, 0xa5, 64);
	tell("listxattr", listxattr(path, (char *)p + 1024, 64), p + 1024, 64);
	tell("removexattr", removexattr(path, (char *)q), 0, 0);
	strcpy((char *)q, dir);
	tell("chdir", chdir((char *)q), 0, 0);
	memset(q, 0xa5, 300);
	tell("getcwd", syscall(SYS_getcwd, q, 300) > 0, 0, 0);
	tell("getcwd, any length", syscall(SYS_getcwd, q, 1L << 62) > 0, 0, 0);
	tell("getcwd, short", syscall(SYS_getcwd, q, 2), 0, 0);
	tell("chdir back", chdir("/"), 0, 0);
	fd = open(dir, O_RDONLY | O_DIRECTORY);
	memset(q, 0xa5, 1024);
	tell("getdents64", syscall(SYS_getdents64, fd, q, 1024) > 0, 0, 0);
	lseek(fd, 0, SEEK_SET);
	tell("getdents", syscall(SYS_getdents, fd, q, 1024) > 0, 0, 0);
	close(fd);
	struct { unsigned int bytes; int type; unsigned char id[128]; } *handle = (void *)q;
	memset(handle, 0, sizeof(*handle));
	handle->bytes = 128;
	tell("name_to_handle_at", syscall(SYS_name_to_handle_at, AT_FDCWD, path, handle, p + 1024, 0) >= -1, 0, 0);
	strcpy((char *)q, "a name of a memfd");
	fd = syscall(SYS_memfd_create, q, 0);
	tell("memfd_create", fd >= 0, 0, 0);
	close(fd);
	strcpy((char *)q, "/no/such/file");
	tell("open, ENOENT", open((char *)q, O_RDONLY), 0, 0);
	memset(q, 'x', 1000);
	tell("open, ENAMETOOLONG", (q[1000] = 0, open((char *)q, O_RDONLY)), 0, 0);
}

static void data(unsigned char *p)
{
	unsigned char *q = p + 8192;
	loff_t *at = (loff_t *)(p + 16384);
	struct iovec *iov = (struct iovec *)(p + 20000);

	fill(p, 12000);
	lseek(file, 0, SEEK_SET);
	tell("write", write(file, p, 12000), p, 12000);
	lseek(file, 0, SEEK_SET);
	memset(p, 0, 20000);
	tell("read", read(file, p, 12000), p, 20000);
	tell("read, at the end", read(file, p, 12000), p, 20000);
	memset(p, 0, 20000);
	tell("pread64", pread(file, p + 1, 9000, 100), p, 20000);
	tell("pwrite64", pwrite(file, p + 3, 9000, 50), p, 20000);
	for (int i = 0; i < 5; i++)
		iov[i] = (struct iovec){ p + i * 3000, (size_t)(i * 1000 + 1) };
	memset(p, 0, 20000);
	lseek(file, 0, SEEK_SET);
	tell("readv", readv(file, iov, 5), p, 20000);
	tell("writev", writev(file, iov, 5), p, 20000);
	tell("preadv", preadv(file, iov, 5, 7), p, 20000);
	tell("pwritev", pwritev(file, iov, 5, 9), p, 20000);
	tell("preadv2", preadv2(file, iov, 5, 11, 0), p, 20000);
	tell("pwritev2", pwritev2(file, iov, 5, 13, 0), p, 20000);
	tell("pipe: write", write(pipes[1], p, 5000), p, 5000);
	tell("pipe: read, short", read(pipes[0], p + 10, 8000), p, 20000);
	iov[0] = (struct iovec){ p + 100, 3000 };
	tell("vmsplice", vmsplice(pipes[1], iov, 1, 0), p, 3000);
	tell("vmsplice: read", read(pipes[0], q, 3000), q, 3000);
	write(pipes[1], q, 2000);
	iov[0] = (struct iovec){ p + 5000, 2000 };
	tell("vmsplice: out of a pipe", vmsplice(pipes[0], iov, 1, 0), p, 8000);
	*at = 5;
	tell("sendfile", sendfile(pipes[1], file, at, 500), at, 8);
	tell("sendfile: read", read(pipes[0], q, 8000), q, 8000);
	*at = 9;
	tell("splice", splice(file, at, pipes[1], 0, 700, 0), at, 8);
	tell("splice: read", read(pipes[0], q, 8000), q, 8000);
	loff_t *to = at + 1;
	*at = 0, *to = 100;
	tell("copy_file_range", copy_file_range(file, at, file, to, 50, 0), at, 16);
	memset(p, 0, 100);
	tell("getrandom", syscall(SYS_getrandom, p, 100, 0), 0, 0);
	tell("getrandom: changed", hash(p, 100) != hash(arena.last, 100), 0, 0);
}

static void channels(unsigned char *p)
{
	unsigned char *q = p + 8192;
	struct msghdr *m = (struct msghdr *)(p + 16384);
	struct iovec *iov = (struct iovec *)(p + 17000);
	struct mmsghdr *mm = (struct mmsghdr *)(p + 18000);
	struct sockaddr_un *name = (struct sockaddr_un *)(p + 19000);
	socklen_t *len = (socklen_t *)(p + 20000);
	int *n = (int *)(p + 20100), fd, *fds;

	fill(p, 8192);
	tell("sendto", send(streams[0], p, 6000, 0), p, 6000);
	memset(q, 0, 8192);
	tell("recvfrom", recv(streams[1], q, 8000, 0), q, 8192);
	tell("recvfrom, EAGAIN", recv(streams[1], q, 8000, MSG_DONTWAIT), q, 8192);
	memset(m, 0, sizeof(*m));
	iov[0] = (struct iovec){ p + 5, 2000 };
	iov[1] = (struct iovec){ p + 4000, 3000 };
	m->msg_iov = iov;
	m->msg_iovlen = 2;
	m->msg_control = p + 21000;
	m->msg_controllen = CMSG_SPACE(sizeof(int));
	struct cmsghdr *c = CMSG_FIRSTHDR(m);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &pipes[0], sizeof(int));
	tell("sendmsg", sendmsg(sockets[0], m, 0), p, 8192);
	memset(q, 0, 8192);
	iov[0] = (struct iovec){ q + 1, 1500 };
	iov[1] = (struct iovec){ q + 3000, 4000 };
	memset(p + 21000, 0, 200);
	m->msg_controllen = 200;
	m->msg_flags = 0x1234;
	tell("recvmsg", recvmsg(sockets[1], m, 0), q, 8192);
	tell("recvmsg: control", m->msg_controllen, &m->msg_flags, 4);
	c = CMSG_FIRSTHDR(m);
	memcpy(&fd, CMSG_DATA(c), sizeof(int));
	tell("recvmsg: descriptor", fd > 0 && close(fd) == 0, 0, 0);
	memset(mm, 0, 3 * sizeof(*mm));
	for (int i = 0; i < 3; i++) {
		iov[i] = (struct iovec){ p + i * 2500, (size_t)(100 + i) };
		mm[i].msg_hdr.msg_iov = iov + i;
		mm[i].msg_hdr.msg_iovlen = 1;
	}
	tell("sendmmsg", sendmmsg(sockets[0], mm, 3, 0), &mm[2].msg_len, 4);
	for (int i = 0; i < 3; i++)
		iov[i] = (struct iovec){ q + i * 2500, 1000 }, mm[i].msg_len = 77;
	memset(q, 0, 8192);
	tell("recvmmsg", recvmmsg(sockets[1], mm, 3, MSG_WAITFORONE, 0), q, 8192);
	tell("recvmmsg: lengths", mm[0].msg_len + 1000 * mm[1].msg_len + 1000000 * mm[2].msg_len, 0, 0);

	memset(name, 0, sizeof(*name));
	name->sun_family = AF_UNIX;
	snprintf(name->sun_path, sizeof(name->sun_path), "%s/socket", dir);
	int listener = socket(AF_UNIX, SOCK_STREAM, 0), client = socket(AF_UNIX, SOCK_STREAM, 0);
	tell("bind", bind(listener, (void *)name, sizeof(*name)), 0, 0);
	tell("listen", listen(listener, 1), 0, 0);
	tell("connect", connect(client, (void *)name, sizeof(*name)), 0, 0);
	*len = sizeof(*name);
	memset(name, 0xa5, sizeof(*name));
	fd = accept(listener, (void *)name, len);
	tell("accept", fd >= 0, name, 20);
	tell("accept: length", *len, 0, 0);
	*len = 4;
	memset(name, 0xa5, sizeof(*name));
	tell("getsockname", getsockname(fd, (void *)name, len), name, 8);
	tell("getsockname: length", *len > 8, 0, 0);
	*len = sizeof(*name);
	tell("getpeername", getpeername(client, (void *)name, len), name, 2);
	close(fd), close(client), close(listener);
	unlink(name->sun_path);
	*n = 12345;
	tell("setsockopt", setsockopt(sockets[0], SOL_SOCKET, SO_SNDBUF, n, sizeof(*n)), 0, 0);
	*len = sizeof(*n);
	tell("getsockopt", getsockopt(sockets[0], SOL_SOCKET, SO_SNDBUF, n, len), n, 4);
	tell("getsockopt: length", *len, 0, 0);
	fds = n;
	tell("pipe", pipe(fds), 0, 0);
	tell("pipe: close", close(fds[0]) | close(fds[1]), 0, 0);
	tell("socketpair", socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0, 0);
	tell("socketpair: close", close(fds[0]) | close(fds[1]), 0, 0);
	int queue = msgget(IPC_PRIVATE, 0600);
	*(long *)p = 3;
	tell("msgsnd", msgsnd(queue, p, 5000, 0), 0, 0);
	memset(q, 0, 8192);
	tell("msgrcv", msgrcv(queue, q, 6000, 0, 0), q, 6000);
	memset(q, 0, 200);
	tell("msgctl", msgctl(queue, IPC_STAT, (void *)q), q + 8, 4);
	msgctl(queue, IPC_RMID, 0);
	int semaphores = semget(IPC_PRIVATE, 3, 0600);
	memset(p, 0, 64);
	((unsigned short *)p)[1] = 5;
	tell("semctl SETALL", syscall(SYS_semctl, semaphores, 0, SETALL, p), 0, 0);
	struct sembuf op[2] = { { 1, -2, 0 }, { 2, 7, 0 } };
	memcpy(p, op, sizeof(op));
	tell("semop", semop(semaphores, (void *)p, 2), 0, 0);
	memset(p, 0xa5, 64);
	tell("semctl GETALL", syscall(SYS_semctl, semaphores, 0, GETALL, p), p, 16);
	semctl(semaphores, 0, IPC_RMID);
	int segment = shmget(IPC_PRIVATE, 8192, 0600);
	memset(q, 0, 200);
	tell("shmctl", shmctl(segment, IPC_STAT, (void *)q), q + 48, 8);
	shmctl(segment, IPC_RMID, 0);
}

static void waiting(unsigned char *p)
{
	struct pollfd *fds = (struct pollfd *)(p + 16);
	struct timespec *ts = (struct timespec *)(p + 512);
	struct timeval *tv = (struct timeval *)(p + 640);
	fd_set *set = (fd_set *)(p + 1024);
	sigset_t *mask = (sigset_t *)(p + 1500);
	struct epoll_event *events = (struct epoll_event *)(p + 2000);

	tell("pipe: write", write(pipes[1], "x", 1), 0, 0);
	fds[0] = (struct pollfd){ pipes[0], POLLIN, 77 };
	fds[1] = (struct pollfd){ pipes[1], POLLOUT, 77 };
	tell("poll", poll(fds, 2, 1000), fds, 16);
	fds[0].revents = fds[1].revents = 5;
	*ts = (struct timespec){ 5, 0 };
	sigemptyset(mask);
	tell("ppoll", syscall(SYS_ppoll, fds, 2, ts, mask, 8), fds, 16);
	tell("ppoll: rest", ts->tv_sec, 0, 0);
	FD_ZERO(set);
	FD_SET(pipes[0], set);
	*tv = (struct timeval){ 5, 0 };
	tell("select", select(pipes[0] + 1, set, 0, 0, tv), set, 8);
	tell("select: rest", tv->tv_sec, 0, 0);
	struct { sigset_t *mask; size_t n; } *pair = (void *)(p + 1400);
	pair->mask = mask, pair->n = 8;
	*ts = (struct timespec){ 5, 0 };
	tell("pselect6", syscall(SYS_pselect6, pipes[0] + 1, set, 0, 0, ts, pair), set, 8);
	int ep = epoll_create1(0);
	*events = (struct epoll_event){ EPOLLIN, { .u64 = 0x1122334455667788 } };
	tell("epoll_ctl", epoll_ctl(ep, EPOLL_CTL_ADD, pipes[0], events), 0, 0);
	memset(events, 0xa5, 60);
	tell("epoll_wait", epoll_wait(ep, events, 5, 1000), events, 60);
	memset(events, 0xa5, 60);
	tell("epoll_pwait", syscall(SYS_epoll_pwait, ep, events, 5, 1000, mask, 8), events, 60);
	memset(events, 0xa5, 60);
	tell("epoll_pwait2", syscall(SYS_epoll_pwait2, ep, events, 5, ts, mask, 8), events, 60);
	close(ep);
	tell("pipe: read", read(pipes[0], p, 10), p, 1);
	*ts = (struct timespec){ 0, 1000000 };
	tell("nanosleep", nanosleep(ts, ts + 1), ts, 16);
	tell("clock_nanosleep", clock_nanosleep(CLOCK_MONOTONIC, 0, ts, ts + 1), ts, 16);
	int ev = eventfd(0, 0);
	*(unsigned long *)p = 41;
	tell("eventfd: write", write(ev, p, 8), p, 8);
	*(unsigned long *)p = 1;
	write(ev, p, 8);
	tell("eventfd: read", read(ev, p, 8), p, 8);
	close(ev);
	int timer = timerfd_create(CLOCK_MONOTONIC, 0);
	struct itimerspec *it = (struct itimerspec *)(p + 600);
	*it = (struct itimerspec){ { 0, 0 }, { 0, 1000000 } };
	memset(it + 1, 0xa5, sizeof(*it));
	tell("timerfd_settime", timerfd_settime(timer, 0, it, it + 1), it + 1, 32);
	tell("timerfd: read", read(timer, p, 8), p, 8);
	memset(it, 0xa5, sizeof(*it));
	tell("timerfd_gettime", timerfd_gettime(timer, it), it, 32);
	close(timer);
	int *word = (int *)(p + 128);
	*word = 7;
	*ts = (struct timespec){ 0, 1000000 };
	tell("futex WAIT, EAGAIN", syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 8, ts), 0, 0);
	tell("futex WAIT, ETIMEDOUT", syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 7, ts), 0, 0);
	tell("futex WAKE", syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1), 0, 0);
	tell("futex WAKE_OP", syscall(SYS_futex, word, FUTEX_WAKE_OP_PRIVATE, 1, 1, word + 1,
				       FUTEX_OP(FUTEX_OP_SET, 9, FUTEX_OP_CMP_EQ, 0)), word, 8);
	tell("futex CMP_REQUEUE", syscall(SYS_futex, word, FUTEX_CMP_REQUEUE_PRIVATE, 1, 1, word + 1, 7), 0, 0);
	*word = 0;
	tell("futex LOCK_PI", syscall(SYS_futex, word, FUTEX_LOCK_PI_PRIVATE, 0, 0), 0, 0);
	tell("futex LOCK_PI: owner", *word == (int)gettid(), 0, 0);
	tell("futex UNLOCK_PI", syscall(SYS_futex, word, FUTEX_UNLOCK_PI_PRIVATE, 0, 0), word, 4);
	struct { unsigned long value, word; unsigned int flags, reserved; } *waiter = (void *)(p + 700);
	memset(waiter, 0, 48);
	waiter[0].value = 1, waiter[0].word = (unsigned long)word, waiter[0].flags = 2 | 128;
	tell("futex_waitv", syscall(449, waiter, 1, 0, 0, 0), 0, 0);
	sigset_t *set2 = (sigset_t *)(p + 900);
	sigemptyset(set2);
	sigaddset(set2, SIGUSR1);
	memset(mask, 0xa5, 8);
	tell("rt_sigprocmask", syscall(SYS_rt_sigprocmask, SIG_BLOCK, set2, mask, 8), mask, 8);
	kill(getpid(), SIGUSR1);
	memset(mask, 0xa5, 8);
	tell("rt_sigpending", syscall(SYS_rt_sigpending, mask, 8), mask, 8);
	siginfo_t *info = (siginfo_t *)(p + 1024);
	tell("rt_sigtimedwait", syscall(SYS_rt_sigtimedwait, set2, info, ts, 8), info, 12);
	int sfd = syscall(SYS_signalfd4, -1, set2, 8, SFD_NONBLOCK);
	kill(getpid(), SIGUSR1);
	memset(p + 1024, 0, 128);
	tell("signalfd: read", read(sfd, p + 1024, 128), p + 1024, 4);
	close(sfd);
	memset(info, 0, 128);
	info->si_code = -1;
	info->si_value.sival_int = 99;
	tell("rt_sigqueueinfo", syscall(SYS_rt_sigqueueinfo, getpid(), SIGUSR1, info), 0, 0);
	memset(info, 0, 128);
	tell("rt_sigtimedwait", syscall(SYS_rt_sigtimedwait, set2, info, ts, 8), info, 12);
	pid_t child = fork();
	if (child == 0)
		_exit(3);
	int *status = (int *)(p + 200);
	struct rusage *usage = (struct rusage *)(p + 2000);
	*status = 0x55555555;
	memset(usage, 0xa5, sizeof(*usage));
	tell("wait4", wait4(child, status, 0, usage) == child, status, 4);
	tell("wait4: usage", usage->ru_nsignals, 0, 0);
	child = fork();
	if (child == 0)
		_exit(4);
	memset(info, 0, 128);
	tell("waitid", syscall(SYS_waitid, P_PID, child, info, WEXITED, usage), info, 12);
	tell("waitid: status", info->si_status, 0, 0);
}

static void about(unsigned char *p)
{
	long *l = (long *)p;
	memset(p, 0xa5, 512);
	tell("uname", uname((void *)p), p, 260);
	tell("getrlimit", syscall(SYS_getrlimit, RLIMIT_NOFILE, p), p, 16);
	tell("setrlimit", syscall(SYS_setrlimit, RLIMIT_NOFILE, p), p, 16);
	memset(p + 64, 0xa5, 16);
	tell("prlimit64", prlimit(0, RLIMIT_NOFILE, (void *)p, (void *)(p + 64)), p + 64, 16);
	tell("getrusage", syscall(SYS_getrusage, RUSAGE_SELF, p), p + 120, 8);
	memset(p, 0xa5, 512);
	tell("sysinfo", sysinfo((void *)p), p + 32, 8);
	tell("times", times((void *)p) > 0, 0, 0);
	l[0] = l[1] = -1;
	tell("gettimeofday", syscall(SYS_gettimeofday, p, p + 16), p + 16, 8);
	tell("gettimeofday: time", l[0] > 1000000000, 0, 0);
	l[0] = -1;
	tell("time", syscall(SYS_time, p) == l[0], 0, 0);
	l[0] = -1;
	tell("clock_gettime", syscall(SYS_clock_gettime, CLOCK_REALTIME, p), 0, 0);
	tell("clock_gettime: time", l[0] > 1000000000, 0, 0);
	tell("clock_getres", syscall(SYS_clock_getres, CLOCK_MONOTONIC, p), p, 16);
	memset(p, 0, 208);
	tell("adjtimex", syscall(SYS_adjtimex, p) >= 0, 0, 0);
	memset(p, 0, 208);
	tell("clock_adjtime", syscall(SYS_clock_adjtime, CLOCK_REALTIME, p) >= 0, 0, 0);
	tell("getresuid", syscall(SYS_getresuid, p, p + 4, p + 8), p, 12);
	tell("getresgid", syscall(SYS_getresgid, p, p + 4, p + 8), p, 12);
	tell("getgroups, size", getgroups(0, (void *)p) >= 0, 0, 0);
	tell("getgroups", getgroups(100, (void *)p) >= 0, 0, 0);
	memset(p, 0, 1024);
	tell("sched_getaffinity", syscall(SYS_sched_getaffinity, 0, 128, p) > 0, p, 128);
	tell("sched_setaffinity", syscall(SYS_sched_setaffinity, 0, 128, p), 0, 0);
	tell("sched_getparam", syscall(SYS_sched_getparam, 0, p), p, 4);
	tell("sched_setparam", syscall(SYS_sched_setparam, 0, p), p, 4);
	tell("sched_rr_get_interval", syscall(SYS_sched_rr_get_interval, 0, p), 0, 0);
	memset(p, 0xa5, 64);
	tell("sched_getattr", syscall(SYS_sched_getattr, 0, p, 48, 0), p, 16);
	tell("sched_setattr", syscall(SYS_sched_setattr, 0, p, 0), 0, 0);
	strcpy((char *)p, "a name");
	tell("prctl SET_NAME", prctl(PR_SET_NAME, p), 0, 0);
	memset(p, 0xa5, 64);
	tell("prctl GET_NAME", prctl(PR_GET_NAME, p), p, 64);
	tell("prctl GET_PDEATHSIG", prctl(PR_GET_PDEATHSIG, p), p, 4);
	memset(p, 0, 64);
	*(unsigned *)p = 0x20080522;
	tell("capget", syscall(SYS_capget, p, p + 16), p, 8);
	tell("capset", syscall(SYS_capset, p, p + 16) <= 0, 0, 0);
	tell("getcpu", syscall(SYS_getcpu, p, p + 4, 0), 0, 0);
	memset(p, 0xa5, 64);
	tell("mincore", mincore((void *)&hot, 3 * PAGE, p) , p + 3, 20);
	memset(p, 0, 512);
	tell("get_mempolicy", syscall(SYS_get_mempolicy, p, p + 64, 1024, 0, 0) <= 0, 0, 0);
	l[0] = (long)&arena;
	memset(p + 16, 0xa5, 16);
	tell("move_pages", syscall(SYS_move_pages, 0, 1, p, 0, p + 16, 0) <= 0, 0, 0);
	struct iovec *iov = (struct iovec *)(p + 256);
	fill(p + 1024, 2000);
	iov[0] = (struct iovec){ p + 5000, 2000 };
	iov[1] = (struct iovec){ p + 1024, 2000 };
	memset(p + 5000, 0, 2000);
	tell("process_vm_readv", syscall(SYS_process_vm_readv, getpid(), iov, 1, iov + 1, 1, 0), p + 5000, 2000);
	memset(p + 1024, 0, 2000);
	tell("process_vm_writev", syscall(SYS_process_vm_writev, getpid(), iov, 1, iov + 1, 1, 0), p + 1024, 2000);
	timer_t *timer = (timer_t *)(p + 128);
	struct sigevent *event = (struct sigevent *)p;
	memset(event, 0, sizeof(*event));
	event->sigev_notify = SIGEV_NONE;
	tell("timer_create", syscall(SYS_timer_create, CLOCK_MONOTONIC, event, timer), 0, 0);
	int id = *(int *)timer;
	struct itimerspec *it = (struct itimerspec *)(p + 160);
	*it = (struct itimerspec){ { 0, 0 }, { 100, 0 } };
	tell("timer_settime", syscall(SYS_timer_settime, id, 0, it, it + 1), it + 1, 32);
	tell("timer_gettime", syscall(SYS_timer_gettime, id, it), &it->it_interval, 16);
	tell("timer_delete", syscall(SYS_timer_delete, id), 0, 0);
	memset(it, 0xa5, 64);
	tell("getitimer", getitimer(ITIMER_REAL, (void *)it), it, 32);
	tell("setitimer", setitimer(ITIMER_VIRTUAL, (void *)it, (void *)(it + 1)), it, 64);
	struct flock *lock = (struct flock *)p;
	*lock = (struct flock){ .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 1, .l_len = 2 };
	tell("fcntl SETLK", fcntl(file, F_SETLK, lock), 0, 0);
	tell("fcntl GETLK", fcntl(file, F_GETLK, lock), lock, 24);
	struct f_owner_ex *owner = (struct f_owner_ex *)p;
	tell("fcntl GETOWN_EX", fcntl(pipes[0], F_GETOWN_EX, owner), owner, 8);
	*(int *)p = 0;
	tell("pipe: write", write(pipes[1], "xyz", 3), 0, 0);
	tell("ioctl FIONREAD", ioctl(pipes[0], FIONREAD, p), p, 4);
	tell("pipe: read", read(pipes[0], p, 3), p, 3);
	*(int *)p = 0;
	tell("ioctl FIONBIO", ioctl(pipes[0], FIONBIO, p), 0, 0);
	tell("ioctl TCGETS", ioctl(pipes[0], TCGETS, p), 0, 0);
	tell("ioctl FS_IOC_GETFLAGS", ioctl(file, FS_IOC_GETFLAGS, p) >= -1, 0, 0);
	int pt = open("/dev/ptmx", O_RDWR | O_NOCTTY);
	if (pt >= 0) {
		memset(p, 0xa5, 64);
		tell("ioctl TCGETS", ioctl(pt, TCGETS, p), p, 36);
		tell("ioctl TCSETS", ioctl(pt, TCSETS, p), p, 36);
		*(struct winsize *)p = (struct winsize){ 1, 2, 3, 4 };
		tell("ioctl TIOCSWINSZ", ioctl(pt, TIOCSWINSZ, p), 0, 0);
		memset(p, 0xa5, 64);
		tell("ioctl TIOCGWINSZ", ioctl(pt, TIOCGWINSZ, p), p, 16);
		*(int *)p = 0;
		tell("ioctl TIOCSPTLCK", ioctl(pt, TIOCSPTLCK, p), 0, 0);
		close(pt);
	}
	/* Unknown calls get the kernel's answers. */
	tell("no such call", syscall(999, p, p, p), 0, 0);
	tell("bpf", syscall(SYS_bpf, 999, p, 64), 0, 0);
	tell("keyctl", syscall(SYS_keyctl, 999, p, p), 0, 0);
	memset(p, 0, 128);
	tell("perf_event_open", syscall(SYS_perf_event_open, p, 0, -1, -1, 0) == -1, 0, 0);
}

/* A futex in a guarded page between two threads. */
static int *word;
static void *waker(void *unused)
{
	for (int i = 0; i < 200; i++) {
		__atomic_add_fetch(word, 1, __ATOMIC_SEQ_CST);
		syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1);
		sched_yield();
	}
	return unused;
}

static void threads(unsigned char *p)
{
	pthread_t thread;
	word = (int *)p;
	*word = 0;
	pthread_create(&thread, 0, waker, 0);
	for (int seen; (seen = __atomic_load_n(word, __ATOMIC_SEQ_CST)) < 200;)
		syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, 0);
	tell("pthread_join", pthread_join(thread, 0), word, 4);
}

/* Where the program may not go, neither may the kernel for it. */
static void edges(void)
{
	unsigned char *end = arena.behind + 2 * PAGE;

	where = "edge";
	mprotect(end, PAGE, PROT_NONE);
	fill(arena.behind, 2 * PAGE);
	lseek(file, 0, SEEK_SET);
	tell("write", write(file, end - 100, 100), 0, 0);
	tell("write, past the end", write(file, end - 100, 200), 0, 0);
	lseek(file, 0, SEEK_SET);
	tell("read, past the end", read(file, end - 50, 200), end - 50, 50);
	tell("pipe: write", write(pipes[1], hot, 500), 0, 0);
	tell("pipe: read, past the end", read(pipes[0], end - 50, 300), end - 50, 50);
	mprotect(end, PAGE, PROT_READ | PROT_WRITE);
	mprotect(hot + PAGE, PAGE, PROT_READ);
	lseek(file, 0, SEEK_SET);
	tell("read, read-only", read(file, hot + PAGE + 5, 10), hot + PAGE, PAGE);
	tell("read, into read-only", read(file, hot + PAGE - 10, 30), hot + PAGE - 10, 40);
	tell("write, read-only", write(file, hot + PAGE + 5, 10), 0, 0);
	mprotect(hot + PAGE, PAGE, PROT_READ | PROT_WRITE);
	tell("read, null", read(file, 0, 10), 0, 0);
	tell("read, nowhere", read(file, (void *)0x1000, 10), 0, 0);
	tell("open, nowhere", open((char *)0x1000, O_RDONLY), 0, 0);
	tell("nanosleep, nowhere", nanosleep((void *)0x1000, 0), 0, 0);
	/* Large buffers of which only a page is guarded. */
	fill(arena.far, sizeof(arena.far) + sizeof(arena.alone) + sizeof(arena.last));
	lseek(file, 0, SEEK_SET);
	tell("write, large", write(file, arena.far + 5, 61 * PAGE - 10), 0, 0);
	memset(arena.far, 0, 61 * PAGE);
	lseek(file, 0, SEEK_SET);
	tell("read, large", read(file, arena.far + 7, 61 * PAGE - 20), arena.far, 61 * PAGE);
	tell("pread64, large", pread(file, arena.far + 11, 61 * PAGE - 20, 3), arena.far, 61 * PAGE);
	tell("pwrite64, large", pwrite(file, arena.far + 11, 61 * PAGE - 20, 9), arena.far, 61 * PAGE);
	tell("read, large and short", read(file, arena.far + 1, 60 * PAGE), arena.far, 61 * PAGE);
}

int main(void)
{
	/* In the guarded pages, across their edges, across the edges of what lies beside them. */
	struct { const char *name; unsigned char *p; } places[] = {
		{ "plain", arena.last + 24 }, { "inside", hot + 128 }, { "edge", hot + PAGE - 24 },
		{ "before", hot - 8 }, { "near", hot - PAGE - 8 }, { "behind", hot + 2 * PAGE - 8 },
		{ "far", hot - 5 * PAGE + 8 }, { "hot-512", hot - 520 }, { "hot-1024", hot - 1032 },
		{ "hot-2048", hot - 2048 }, { "odd", hot + 4096 - 515 },
	};

	strcpy(dir, "/tmp/ulpf-syscalls-XXXXXX");
	if (!mkdtemp(dir))
		return 2;
	snprintf(file_path, sizeof(file_path), "%s/file", dir);
	snprintf(link_path, sizeof(link_path), "%s/link", dir);
	file = open(file_path, O_RDWR | O_CREAT, 0600);
	if (file < 0 || pipe(pipes) || socketpair(AF_UNIX, SOCK_DGRAM, 0, sockets) ||
	    socketpair(AF_UNIX, SOCK_STREAM, 0, streams))
		return 2;
	fcntl(pipes[1], F_SETPIPE_SZ, 1 << 18);
	ready();
	for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++) {
		where = places[i].name;
		files(places[i].p);
		data(places[i].p);
		channels(places[i].p);
		waiting(places[i].p);
		about(places[i].p);
		threads(places[i].p);
	}
	edges();
	unlink(file_path);
	rmdir(dir);
	puts("syscalls: done");
	return 0;
}
