/* Loads a library, calls it, unloads it, loads it again. */
#include <dlfcn.h>
#include <libgen.h>
#include <stdio.h>
#include <string.h>

int notes;

__attribute__((noinline)) void loaded(void)
{
	__asm__ volatile("");
}

int main(int argc, char **argv)
{
	char path[4096];
	int sum = 0;

	(void)argc;
	snprintf(path, sizeof path - 16, "%s", argv[0]);
	snprintf(path, sizeof path, "%s/libplugin.so", dirname(strdup(argv[0])));
	for (int i = 0; i < 2; i++) {
		void *library = dlopen(path, RTLD_NOW);
		int (*step)(int);
		void (*note)(int *);

		if (!library) {
			puts(dlerror());
			return 2;
		}
		step = (int (*)(int))dlsym(library, "plugin_step");
		note = (void (*)(int *))dlsym(library, "plugin_note");
		loaded();
		sum += step(10) + step(20);
		note(&notes);
		dlclose(library);
		notes += 10;
	}
	printf("plugins: %d\n", sum);
	return 0;
}
