// A watched program that writes a hit with the latest possible time to the memory in which its hits are kept, and
// then continues normally. With an argument it waits until ulpf attaches. A second argument is the number of a process
// that it claims to be.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SLOTS (1ul << 20)
#define AREAS (1ul << 15)
#define HEADS (4096 + SLOTS * 128 + SLOTS * 32 + AREAS * (256 + 2 * 256 * 8 + 512 * 8))
#define RINGS (HEADS + AREAS * 64)

volatile long counter;

static char *shared(void) {
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        if (strstr(line, "/memfd:ulpf-shared") && strstr(line, " rw-s 00000000")) return (char *)strtoul(line, 0, 16);
    return 0;
}

int main(int argc, char **argv) {
    char *area;
    // ulpf attach sets the watch a moment after it has attached.
    for (int n = 0; !(area = shared()) && argc > 1 && n < 3000; n++) usleep(10000);
    if (!area) return 3;
    for (long before = counter; argc > 1 && counter < before + 200; counter++) usleep(10000);
    counter++;
    if (argc > 2) ((volatile uint32_t *)area)[8] = atoi(argv[2]);
    volatile uint64_t *head = (void *)(area + HEADS);
    for (int n = 0; n < 3; n++) {
        uint64_t at = head[0], count = head[1];
        volatile uint64_t *slot = (void *)(area + RINGS + (at & 0xffff) * 64);
        uint64_t *before = (uint64_t *)(area + RINGS + ((at - 1) & 0xffff) * 64);
        for (int i = 2; i < 8; i++) slot[i] = before[i];
        slot[1] = UINT64_MAX - n;
        head[1] = count + 1;
        head[0] = at + 1;
        slot[0] = (uint32_t)(((uint32_t)at + 1) * 0x9e3779b1u) | count << 32;
    }
    printf("forged\n");
    fflush(stdout);
    for (int n = 0; n < 10000; n++) {
        counter++;
        usleep(1000);
    }
    return 0;
}
