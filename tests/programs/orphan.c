/* A vfork child outlives its parent, whose memory it has: orphan [FILE TO EXECUTE] */
#define _GNU_SOURCE
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

volatile int shared;

__attribute__((noinline)) void ready(void)
{
    __asm__ volatile("");
}

int main(int argc, char **argv)
{
    const struct timespec tick = {0, 10 * 1000 * 1000};
    int status;
    pid_t child;

    ready();
    child = vfork();
    if (child == 0) {
        for (int i = 0; i < 100; i++) {
            shared = i;
            nanosleep(&tick, NULL);
        }
        if (argc > 1)
            execv(argv[1], argv + 1);
        _exit(shared == 99 ? 0 : 1);
    }
    return waitpid(child, &status, 0) == child && status == 0 ? 0 : 1;
}
