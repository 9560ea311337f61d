// A task beside the threads shares their memory, as LeakSanitizer's does at the end of a program. It stops them all by
// ptrace(2), maps memory and stores much meanwhile, and lets them go.
#define _GNU_SOURCE
#include <dirent.h>
#include <elf.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 3, STACK = 1 << 18, ROUNDS = 20000, KEPT = 50 };

int counter;
static volatile int over;
static char *blocks[64];
static char *volatile kept[KEPT];
static pid_t program;

static void *thread(void *unused) {
    while (!over)
        if (__atomic_fetch_add(&counter, 1, __ATOMIC_RELAXED) % 64 == 0)
            getppid();
    return unused;
}

// Waits for the task's SIGSTOP, and passes other signals on to it.
static int stops(pid_t task) {
    int status;
    while (waitpid(task, &status, __WALL) == task && WIFSTOPPED(status)) {
        if (WSTOPSIG(status) == SIGSTOP)
            return 1;
        ptrace(PTRACE_CONT, task, 0, WSTOPSIG(status));
    }
    return 0;
}

// Reads and writes the registers of a task, in memory of the heap; true if they are valid.
static int registers(pid_t task) {
    struct user_regs_struct *new = calloc(10, sizeof *new), *old = calloc(1, sizeof *old);
    struct iovec *vector = malloc(sizeof *vector);
    *vector = (struct iovec){new, 10 * sizeof *new};
    int got = !ptrace(PTRACE_GETREGSET, task, NT_PRSTATUS, vector) && vector->iov_len == sizeof *new;
    got = got && !ptrace(PTRACE_SETREGSET, task, NT_PRSTATUS, vector);
    got = got && !ptrace(PTRACE_GETREGS, task, 0, old);
    return got && new->rip && !memcmp(old, new, sizeof *new);
}

// Memory that was mapped meanwhile is watched from here on.
__attribute__((noinline)) static void marks(void) {
    for (int n = 0; n < KEPT; n++)
        kept[n][64 + n] = n + 1;
}

static int tracer(void *unused) {
    pid_t tasks[16];
    int count = 0;
    char name[64];
    snprintf(name, sizeof name, "/proc/%d/task", program);
    DIR *folder = opendir(name);
    for (struct dirent *entry; folder && (entry = readdir(folder)) && count < 16;) {
        pid_t task = atoi(entry->d_name);
        if (task && !ptrace(PTRACE_ATTACH, task, 0, 0) && stops(task))
            tasks[count++] = task;
    }
    if (folder)
        closedir(folder);
    for (int n = 0; n < 100; n++) {
        char *memory = mmap(0, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memset(memory, 0x80, 1 << 16);
        if (n % 2)
            munmap(memory, 1 << 16);
        else
            kept[n / 2] = memory;
    }
    for (int n = 0; n < ROUNDS; n++)
        blocks[n % 64][n % 50] = n;
    int read = 0;
    for (int n = 0; n < count; n++)
        read += registers(tasks[n]);
    for (int n = 0; n < count; n++) {
        usleep(1000); // those before go on
        ptrace(PTRACE_DETACH, tasks[n], 0, 0);
    }
    marks();
    _exit(read == count && count > THREADS ? 0 : 1);
}

int main(void) {
    program = getpid();
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    for (int n = 0; n < 64; n++)
        blocks[n] = malloc(50);
    pthread_t threads[THREADS];
    for (int n = 0; n < THREADS; n++)
        pthread_create(&threads[n], 0, thread, 0);
    usleep(50000);
    char *stack = malloc(STACK);
    pid_t task = clone(tracer, stack + STACK, CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_UNTRACED, 0);
    int status = -1;
    if (task < 0 || waitpid(task, &status, __WALL) != task)
        perror("clone");
    over = 1;
    for (int n = 0; n < THREADS; n++)
        pthread_join(threads[n], 0);
    printf("the tracer has ended with %d\n", status);
    fflush(stdout);
    free(stack);
    return 0;
}
