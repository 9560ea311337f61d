// Values of each type, stores that libraries make for the program, and its ends: for the record of hits.
//
//     record types | copies | talk N | talk-now N | count N | crash | wild | divide | abort | thread
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum colour { RED, GREEN, BLUE = 7 };
struct pair { int a, b; };
struct only { double inner; };
struct node { struct node *next; int payload; };

int number;
unsigned long large;
bool flag;
float half;
double third;
enum colour colour;
char letter;
char text[64];
int list[4];
struct pair pair;
struct only only;
void *pointer;
struct { unsigned low : 3; int high : 5; } bits;

// The compiler must not know what is copied.
const char *volatile words = "hello, \"record\"\n";
volatile size_t length = 8;
static struct node nodes[2];
struct node *volatile head = nodes;

__attribute__((noinline)) void types(void) {
    number = -7;
    large = 18446744073709551615UL;
    flag = true;
    half = 0.5f;
    third = 1.0 / 3.0;
    colour = BLUE;
    letter = 'r';
    list[2] = 9;
    only.inner = -2.25;
    pointer = (void *)0x1234;
    bits.high = -3;
    ((volatile char *)&pair)[1] = 1;
    third = __builtin_inf();
}

__attribute__((noinline)) void copies(void) {
    int some[4] = {1, 2, 3, 4};
    strcpy(text, words);
    memcpy(list, some, length);
    snprintf(text, sizeof text, "%s", words);
    memset(text, 'x', length);
    text[0] = 'y';
}

__attribute__((noinline)) int reads(void) {
    int ends[2];
    if (pipe(ends) != 0 || write(ends[1], "piped", 5) != 5)
        return 1;
    return read(ends[0], text, 5) != 5;
}

// Program and log share standard error.
__attribute__((noinline)) void talk(int lines) {
    char line[128];
    for (int n = 0; n < lines; n++) {
        number = n;
        int size = snprintf(line, sizeof line, "program line %d, as long as lines are that programs write to say where they are\n", n);
        for (int at = 0; at < size;) {
            ssize_t wrote = write(2, line + at, size - at);
            if (wrote > 0)
                at += wrote;
        }
    }
}

__attribute__((noinline)) void count(long stores) {
    for (long n = 0; n < stores; n++)
        *(volatile int *)&number = n;
}

__attribute__((noinline)) void lose(void) { head->next = (struct node *)0x10; }

__attribute__((noinline)) int follow(struct node *node) {
    return node->next->payload;
}

static void *thread(void *none) {
    (void)none;
    lose();
    exit(follow(head));
}

__attribute__((noinline)) void ready(void) { __asm__ volatile(""); }
__attribute__((noinline)) void done(void) { __asm__ volatile(""); }

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "types";
    int status = 0;
    ready();
    if (strcmp(what, "types") == 0)
        types();
    else if (strcmp(what, "copies") == 0) {
        copies();
        status = reads();
    } else if (strncmp(what, "talk", 4) == 0) {
        if (strcmp(what, "talk-now") == 0)
            fcntl(2, F_SETFL, O_NONBLOCK);
        talk(atoi(argv[2]));
    } else if (strcmp(what, "count") == 0)
        count(atol(argv[2]));
    else if (strcmp(what, "crash") == 0) {
        lose();
        return follow(head);
    } else if (strcmp(what, "wild") == 0)
        ((void (*)(void))0x10)();
    else if (strcmp(what, "divide") == 0)
        status = 5 / number;
    else if (strcmp(what, "abort") == 0)
        abort();
    else if (strcmp(what, "thread") == 0) {
        pthread_t other;
        pthread_create(&other, NULL, thread, NULL);
        pthread_join(other, NULL);
    }
    done();
    return status;
}
