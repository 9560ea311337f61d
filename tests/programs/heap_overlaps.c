/* Copies between places that overlap: each word one of them, each in a function of its own name. `none`: none of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ERROR(name) static __attribute__((noinline)) void name(void)

static char *text, local[100];
static volatile size_t ten = 10, four = 4, none_at_all = 0;

ERROR(copies) { memcpy(text + four, text, ten); }
ERROR(copies_back) { memcpy(text, text + four, ten); }
ERROR(copies_and_tells) { mempcpy(text + four, text, ten); }
ERROR(copies_string) { strcpy(text + four, text); }
ERROR(copies_string_and_tells) { stpcpy(text, text + four); }
ERROR(copies_some) { strncpy(text, text + four, ten); }
ERROR(appends) { strcat(text, text + four); }
ERROR(appends_some) { strncat(text, text + four, ten); }
ERROR(copies_elsewhere) { strcpy(local, "0123456789"); memcpy(local + four, local, ten); }
ERROR(none)
{
	for (int n = 0; n < 1000; n++) {
		memmove(text + four, text, ten);
		memcpy(text + ten, text, ten);
		memcpy(text, text + ten, ten);
		memcpy(text, text, ten);
		memcpy(text, text + 1, none_at_all);
		strcpy(text, "0123");
		strcpy(text + 5, text);
		strncpy(text + four, text, four);
		strcpy(text, "0123");
		strcat(text + 10, text);
		strncat(text + 40, text, four);
		text[10] = text[40] = 0;
	}
}

int main(int count, char **word)
{
	static const struct { const char *name; void (*makes)(void); } all[] = {
#define E(name) { #name, name }
		E(copies), E(copies_back), E(copies_and_tells), E(copies_string), E(copies_string_and_tells), E(copies_some),
		E(appends), E(appends_some), E(copies_elsewhere), E(none),
	};
	text = calloc(1, 100);
	strcpy(text, "0123456789");
	for (size_t n = 0; n < sizeof all / sizeof *all; n++)
		if (count > 1 && strcmp(word[1], all[n].name) == 0)
			all[n].makes();
	puts("done");
	free(text);
	return 0;
}
