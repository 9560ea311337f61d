/*
 * Functions of the C library for strings, on strings that end where their blocks end: at each place within a vector,
 * and of each length up to some vectors. They read whole vectors, beyond the end too, and make no error in it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <wchar.h>

#ifndef __GLIBC__
#define rawmemchr(text, c) strchr(text, c)
#endif

static volatile size_t sum;
static const char many[] = "abcdefghijklmnopqrstuvwxyz";

/* The last `size` bytes of a block that begins at a multiple of 16, `before` bytes after its beginning. */
static char *at_the_end(size_t before, size_t size)
{
	return (char *)malloc(before + size) + before;
}

static void one(size_t before, size_t length)
{
	char *a = at_the_end(before, length + 1), *b = at_the_end((before * 7 + 3) % 16, length + 1);
	char *copy = at_the_end(before % 5, 2 * length + 1), *part = at_the_end(before, length ? length : 1);

	memset(a, 'a', length);
	a[length] = 0;
	memcpy(b, a, length + 1);
	memset(part, 'a', length ? length : 1);
	sum += strlen(a) + strnlen(part, length) + (size_t)strcmp(a, b) + (size_t)strncmp(a, b, length + 5);
	sum += (size_t)strcasecmp(a, b) + (size_t)strncasecmp(a, part, length);
	sum += (size_t)strchr(a, 'x') + (size_t)(strchrnul(a, 'x') - a) + (size_t)strrchr(a, 'x') + (size_t)memchr(part, 'x', length);
	sum += (size_t)memrchr(part, 'x', length) + (size_t)((char *)rawmemchr(a, 0) - a) + (size_t)memcmp(a, b, length + 1);
	sum += (size_t)strstr(a, "ab") + strspn(a, "a") + strcspn(a, "xyz") + (size_t)strpbrk(a, "xyz") + (size_t)strcoll(a, b);
	/* (More than 16 characters are looked for in another way.) */
	sum += strspn(a, many) + strcspn(a, many + 1) + (size_t)strpbrk(a, many + 1);
	strcpy(copy, a);
	strcat(copy, b);
	sum += (size_t)(stpcpy(copy, a) - copy);
	strncpy(copy, a, length + 1);
	strncpy(copy, part, length);
	stpncpy(copy, a, 2 * length + 1);
	copy[0] = 0;
	strncat(copy, part, length);
	free(strdup(a));
	free(strndup(part, length));
	sum += (size_t)atoi(a) + (size_t)sscanf(a, "%*s");
	free(a - before);
	free(b - (before * 7 + 3) % 16);
	free(copy - before % 5);
	free(part - before);
}

static void wide(size_t before, size_t length)
{
	size_t bytes = (length + 1) * sizeof(wchar_t);
	wchar_t *a = (wchar_t *)at_the_end(before * 4, bytes), *b = (wchar_t *)at_the_end(before * 4, bytes);
	wchar_t *part = (wchar_t *)at_the_end(before * 4, length ? length * sizeof(wchar_t) : 4), *copy = (wchar_t *)at_the_end(0, bytes);

	wmemset(a, L'a', length);
	a[length] = 0;
	wcscpy(b, a);
	wmemset(part, L'a', length ? length : 1);
	sum += wcslen(a) + wcsnlen(part, length) + (size_t)wcscmp(a, b) + (size_t)wcsncmp(a, b, length + 3);
	sum += (size_t)wmemcmp(a, b, length + 1) + (size_t)wmemchr(part, L'x', length) + (size_t)wcschr(a, L'x') + (size_t)wcsrchr(a, L'x');
	wcsncpy(copy, a, length + 1);
	wmemcpy(copy, part, length);
	free((char *)a - before * 4);
	free((char *)b - before * 4);
	free((char *)part - before * 4);
	free(copy);
}

/* The same functions on a block that has been freed. */
static __attribute__((noinline)) void freed(void)
{
	char *block = malloc(4096), *text = block + 2000;
	volatile char first[100] = "another one";

	memset(block, 'a', 4000);
	memset(block + 4000, 0, 96);
	free(block);
	sum += strlen(text);
	sum += (size_t)memcmp(text, (char *)first, 40);
	sum += (size_t)memchr(text, 'x', 40);
	sum += (size_t)strcmp(text, (char *)first);
	sum += wcslen((wchar_t *)text);
}

int main(int argc, char **argv)
{
	for (size_t before = 0; before < 96; before++)
		for (size_t length = 0; length < 140; length += length < 70 ? 1 : 7)
			one(before, length);
	for (size_t before = 0; before < 16; before++)
		for (size_t length = 0; length < 70; length++)
			wide(before, length);
	if (argc > 1)
		freed();
	puts("done");
	return sum == 1;
}
