/* The price of a system call: each goes through the watched program's system-call layer. */
#include <sys/syscall.h>
#include <unistd.h>

#include "measure.h"

_Alignas(4096) long guarded[512];

int main(void)
{
	enum { COUNT = 200000 };
	struct moment start;

	guarded[0] = 1;
	ready();
	start = moment();
	for (int i = 0; i < COUNT; i++)
		syscall(SYS_getppid);
	report(start, COUNT);
	return 0;
}
