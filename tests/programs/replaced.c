/* Code comes, goes, and other code comes to its place, as when libraries are unloaded and loaded. */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define PLACE ((unsigned char *)0x10000000)

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

__attribute__((noinline)) void loaded(void)
{
	__asm__ volatile("");
}

__attribute__((noinline)) void unloaded(void)
{
	__asm__ volatile("");
}

static int call(const unsigned char *code, size_t len)
{
	int (*function)(void) = (int (*)(void))PLACE;
	int result;

	if (mmap(PLACE, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != PLACE)
		return -1;
	memcpy(PLACE, code, len);
	mprotect(PLACE, 4096, PROT_READ | PROT_EXEC);
	loaded();
	result = function();
	munmap(PLACE, 4096);
	unloaded();
	return result;
}

int main(void)
{
	/* mov $1, %eax; ret */
	static const unsigned char one[] = { 0xb8, 1, 0, 0, 0, 0xc3 };
	/* xor %eax, %eax; add $2, %al; ret */
	static const unsigned char two[] = { 0x31, 0xc0, 0x04, 2, 0xc3 };
	int first, second;

	ready();
	first = call(one, sizeof one);
	second = call(two, sizeof two);
	printf("replaced: %d %d\n", first, second);
	return 0;
}
