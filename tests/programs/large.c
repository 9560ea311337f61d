/* Variables larger than the values that debuggers make: written by the kernel, and in parts.
 *
 *   ulpf watch big        (98304 bytes, more than GDB's max-value-size)
 */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

char big[98304];
struct record {
    int head;
    char body[98304];
    long tail;
} record;
char *pointer = big;

__attribute__((noinline)) void ready(void)
{
    __asm__ volatile("");
}

int main(void)
{
    ready();
    int zero = open("/dev/zero", O_RDONLY);
    big[7] = 7;
    long got = read(zero, big, sizeof big);
    record.body[70000] = 3;
    got += read(zero, &record, sizeof record);
    close(zero);
    printf("large: %ld\n", got);
    return 0;
}
