/* Prints its words, one in a line; with "-" among them, its standard input as well. */
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
	char line[256];
	int reads = 0;

	for (int i = 1; i < argc; i++) {
		printf("[%s]\n", argv[i]);
		reads |= strcmp(argv[i], "-") == 0;
	}
	while (reads && fgets(line, sizeof line, stdin))
		printf("input: %s", line);
	return 0;
}
