/* The kernel writes into the program's memory: no instruction of the program does. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <unistd.h>

_Alignas(4096) char buffer[8192];
char other[64];

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

static int check(long got, long want, const char *what)
{
	if (got == want)
		return 0;
	printf("%s returned %ld, not %ld: %m\n", what, got, want);
	return 1;
}

int main(void)
{
	int pipe_fds[2], sockets[2], bad = 0;
	struct iovec iov[2] = { { other, 8 }, { buffer + 100, 8 } };
	FILE *file = tmpfile();
	unsigned long sum = 0;

	if (pipe(pipe_fds) || socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) || !file)
		return 2;
	fputs("0123456789abcdef", file);
	fflush(file);
	ready();
	bad += check(write(pipe_fds[1], "hello, watch", 12), 12, "write");
	bad += check(read(pipe_fds[0], buffer, 12), 12, "read");
	bad += check(write(pipe_fds[1], "0123456789abcdef", 16), 16, "write");
	bad += check(readv(pipe_fds[0], iov, 2), 16, "readv");
	bad += check(send(sockets[0], "packet", 6, 0), 6, "send");
	bad += check(recv(sockets[1], buffer + 4093, 6, 0), 6, "recv");
	bad += check(pread(fileno(file), buffer + 200, 16, 0), 16, "pread");
	bad += check(fstat(fileno(file), (struct stat *)(buffer + 1024)), 0, "fstat");
	bad += check(((struct stat *)(buffer + 1024))->st_size, 16, "st_size");
	bad += check(uname((struct utsname *)(buffer + 2048)), 0, "uname");
	bad += check(write(pipe_fds[1], buffer, 12), 12, "write from the buffer");
	bad += check(read(pipe_fds[0], other, 12), 12, "read back");
	memset(buffer + 1024, 0, 3072 - 3);
	for (int i = 0; i < 8192; i++)
		sum = sum * 31 + (unsigned char)buffer[i];
	printf("sysread: %.12s %.8s %.6s %.16s %d bad, checksum %016lx\n", buffer, buffer + 100,
	       buffer + 4093, buffer + 200, bad, sum);
	return bad;
}
