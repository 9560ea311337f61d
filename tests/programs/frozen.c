/* Stores to a value that ulpf may keep as it is, and prints the value that it finds. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

volatile int lives = 3;
volatile char name[64] = "as it was";
volatile long beside[16];

static void *loses(void *times) {
    for (long i = 0; i < (long) times; i++) {
        lives--;
        beside[i % 16] += i;
    }
    return NULL;
}

int main(int count, char **arguments) {
    long times = count > 1 ? atol(arguments[1]) : 10;
    pthread_t other;
    loses((void *) times);
    printf("alone %d\n", lives);
    pthread_create(&other, NULL, loses, (void *) times);
    loses((void *) times);
    pthread_join(other, NULL);
    printf("two %d\n", lives);
    int from = open("/dev/zero", O_RDONLY);
    if (read(from, (void *) name, 5) != 5)
        return 1;
    memset((void *) (name + 20), 'x', 8);
    printf("name %s, %d\n", name, name[20]);
    lives = 7;
    printf("set %d\n", lives);
    return 0;
}
