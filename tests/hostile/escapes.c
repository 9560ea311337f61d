// Names that a terminal would obey: the test puts escapes in place of the marked words, in the finished file.
//
//     evil_x_   ESC ] 0 ; A A BEL   sets the window's title
//     cone      U+009B 3 m          the same as ESC [ 3 m, in one character
//     bidi      U+202E !            the following text is shown from right to left
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum colour { evil_x_red, cone_green };

struct record {
    int evil_x_field;
    enum colour colour;
    int bidi_field;
};

struct record plain;
struct record evil_x_global;

#line 1 "evil_x_source.c"
__attribute__((noinline)) void evil_x_function(int n) {
    plain.evil_x_field = n;
    plain.colour = n & 1;
    plain.bidi_field = n;
    evil_x_global.bidi_field = n;
}

static void *thread(void *rest) {
    prctl(PR_SET_NAME, "evil_x_thread");
    for (int n = 0; n < (rest ? 30000 : 3); n++) {
        evil_x_function(n);
        usleep(1000);
    }
    return 0;
}

int main(int argc, char **argv) {
    pthread_t other;
    pthread_create(&other, 0, thread, argc > 1 ? argv : 0);
    pthread_join(other, 0);
    return 0;
}
