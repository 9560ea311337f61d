// Handlers of faults that are of no use: one that never returns, and one that returns without having
// permitted the access, or made it.
#include "ulpf_sim.h"
#include <fcntl.h>
#include <sys/ioctl.h>
#include <ulpf.h>

extern char spins[], returns[];
asm("spins: jmp spins\n"
    "returns: add $24, %rsp\n iretq\n");

int main(int argc, char **argv)
{
	int fd = open(ULPF_DEVICE, O_RDWR);
	volatile char *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, ULPF_MAP_GUARD);
	struct ulpf_handler handler = { .size = sizeof handler };
	struct ulpf_op op = { ULPF_OP_SET, 0, (uintptr_t)at, 4096, ULPF_RO };

	handler.entry = (uintptr_t)(argc > 1 && argv[1][0] == 's' ? spins : returns);
	if (ioctl(fd, ULPF_HANDLER, &handler) || ioctl(fd, ULPF_APPLY, &op))
		return 1;
	at[5] = 1;
	return 0;
}
