// A library's allocator that tells AddressSanitizer of its memory if that is there: without it, these functions are 0, and
// nothing happens. `heap_asan_interface bad` uses what it has closed.
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((weak)) void __asan_poison_memory_region(const volatile void *at, size_t len);
__attribute__((weak)) void __asan_unpoison_memory_region(const volatile void *at, size_t len);
__attribute__((weak)) int __asan_address_is_poisoned(const volatile void *at);
__attribute__((weak)) void *__asan_region_is_poisoned(void *at, size_t len);

__attribute__((noinline)) static void end_of_use(char *p, size_t len)
{
	if (__asan_poison_memory_region)
		__asan_poison_memory_region(p, len);
}
__attribute__((noinline)) static void begin_of_use(char *p, size_t len)
{
	if (__asan_unpoison_memory_region)
		__asan_unpoison_memory_region(p, len);
}
__attribute__((noinline)) static void use(char *p) { *(volatile char *)p = 1; }

int main(int count, char **words)
{
	char *p = malloc(100);
	memset(p, 0, 100);
	end_of_use(p + 10, 30);
	use(p + 9);
	use(p + 40);
	if (__asan_address_is_poisoned && __asan_region_is_poisoned)
		printf("%d %d %d %td\n", __asan_address_is_poisoned(p + 9), __asan_address_is_poisoned(p + 10), __asan_address_is_poisoned(p + 39),
			(char *)__asan_region_is_poisoned(p, 100) - p);
	if (count > 1 && strcmp(words[1], "bad") == 0)
		use(p + 39);
	begin_of_use(p + 10, 30);
	use(p + 39);
	memset(p, 0, 100);
	free(p);
	puts("well");
	return 0;
}
