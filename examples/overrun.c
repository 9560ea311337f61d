/* The bug that hardware watchpoints do not see: read(2) gets an unchecked length, and the kernel
 * overwrites the bytes behind the buffer. No instruction of the program ever touches them. */
#include <stdio.h>
#include <unistd.h>

struct account {
	char name[16];
	long balance;
} account = { "nobody", 1000 };

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

int main(void)
{
	struct account sent = { "Mallory", 1000000 };
	size_t length = sizeof(sent);
	int channel[2];

	if (pipe(channel) || write(channel[1], &length, sizeof(length)) != sizeof(length) ||
	    write(channel[1], &sent, length) != (ssize_t)length)
		return 2;
	ready();
	/* A message: the length of the name, then the name. The length is not checked. */
	if (read(channel[0], &length, sizeof(length)) < 0 || read(channel[0], account.name, length) < 0)
		return 2;
	printf("overrun: %s has %ld\n", account.name, account.balance);
	return account.balance != 1000;
}
