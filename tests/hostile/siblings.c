// A child that has given up its rights writes to each page that others share with it and that is not the program's.
// What do its parent's next forks do, and the children that they make?
//
//   siblings VALUE   root: the parent, as what it began
#define _GNU_SOURCE
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCKS = 1 << 12, PAGES = 64 };

int counter;
static volatile int *ready;

static void hostile(int value) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getuid() == 0 && (setgroups(0, 0) || setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534)))
        _exit(9);
    volatile int *found[PAGES];
    int count = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512], rights[5];
    unsigned long start, end;
    while (maps && fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx %4s", &start, &end, rights) == 3 && !strcmp(rights, "rw-s") && start != (unsigned long)ready &&
            count < PAGES)
            found[count++] = (int *)start;
    printf("shared with the first child: %d\n", count);
    fflush(stdout);
    *ready = 1;
    for (;;)
        for (int n = 0; n < count; n++)
            found[n][0] = found[n][1] = found[n][2] = value;
}

int main(int argc, char **argv) {
    ready = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    long *blocks[BLOCKS];
    for (int n = 0; n < BLOCKS; n++) {
        blocks[n] = malloc(4096);
        blocks[n][0] = blocks[n][500] = 7;
    }
    pid_t first = fork();
    if (!first)
        hostile(atoi(argv[1]));
    while (!*ready)
        usleep(1000);
    int bad = 0;
    for (int round = 0; round < 5; round++) {
        pid_t child = fork();
        if (!child) {
            counter = round;
            usleep(100000);
            int wrong = 0;
            for (int n = 0; n < BLOCKS; n++)
                wrong += blocks[n][0] != 7 || blocks[n][500] != 7;
            _exit(wrong != 0);
        }
        for (int n = 0; n < BLOCKS; n++)
            blocks[n][0] = blocks[n][500] = 8;
        int status;
        waitpid(child, &status, 0);
        bad += status != 0;
        for (int n = 0; n < BLOCKS; n++)
            blocks[n][0] = blocks[n][500] = 7;
    }
    kill(first, SIGKILL);
    printf("children with blocks that are not as at the fork: %d\n", bad);
    return 0;
}
