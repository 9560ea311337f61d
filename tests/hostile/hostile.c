/* A watched program, and a process of the same user that impersonates its stub.
 *
 *     hostile target CLOCK                        counts in `watched`, and in the file CLOCK
 *     hostile forger TARGET CLOCK STEP WHAT NUMBER
 *
 * The forger waits until the target runs under ulpf, stops its stub and takes the stub's socket. Then it answers
 * STEP packets as a stub would, and does WHAT:
 *
 *     exec thread fork vfork spawn strange     reports NUMBER, which belongs to another process
 *     notes output garbage packet runs         sends that without end
 *     many deep nonsense truncated             sends a malformed answer
 *     silent deaf                              sends nothing; reads nothing either
 *     close die kill                           ends the connection, itself, the target
 *
 * It says "forging" on its standard output when it begins, and the number of the stub, and "done" at the end.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

volatile int watched;
static volatile unsigned long *tick;

/* Never called: a place to run to. */
__attribute__((noinline)) void ready(void) { watched = -1; }

static void die(const char *what) {
    fprintf(stderr, "hostile: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void open_clock(const char *path) {
    int fd = open(path, O_RDWR);
    if (fd < 0)
        die(path);
    tick = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (tick == MAP_FAILED)
        die("mmap");
}

static void target(void) {
    /* yama would let only our parents look into us. */
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    printf("%d\n", getpid());
    fflush(stdout);
    if (getppid() == 0)
        ready();
    for (;;) {
        watched = watched + 1;
        *tick = *tick + 1;
        usleep(1000);
    }
}

static int control = -1;

static void say(const char *lead, const char *text) {
    char frame[70000];
    unsigned char sum = 0;
    for (const char *c = text; *c; c++)
        sum += *c;
    int len = snprintf(frame, sizeof frame, "%s%s#%02x", lead, text, sum);
    for (int at = 0; at < len;) {
        int n = send(control, frame + at, len - at, MSG_NOSIGNAL);
        if (n <= 0) {
            printf("done\n");
            exit(0); /* the other end has closed */
        }
        at += n;
    }
}

static void answer(const char *format, ...) {
    char text[60000];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    say("$", text);
}

static void notify(const char *format, ...) {
    char text[6000];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    say("%", text);
}

/* Sends the same text again and again, until the other end has closed. */
static void flood(const char *text) {
    static char many[1 << 16];
    size_t len = 0;
    while (len + strlen(text) <= sizeof many)
        len += sprintf(many + len, "%s", text);
    for (size_t at = 0;;) {
        ssize_t n = send(control, many + at, len - at, MSG_NOSIGNAL);
        if (n <= 0)
            return;
        at = (at + n) % len;
    }
}

/* The answer to a monitor command. */
static void answer_in_hex(const char *text) {
    static char hex[60000];
    for (size_t i = 0; text[i] && i < sizeof hex / 2 - 1; i++)
        sprintf(hex + 2 * i, "%02x", (unsigned char)text[i]);
    say("$", hex);
}

/* The next packet of ulpf's; interrupt requests are one, too. */
static char packet[1 << 16];

static int receive(void) {
    size_t len = 0;
    char c;
    enum { OUT, IN } state = OUT;
    for (;;) {
        if (recv(control, &c, 1, 0) != 1)
            return 0;
        if (state == OUT && c == 3) {
            strcpy(packet, "interrupt");
            return 1;
        }
        if (c == '$') {
            state = IN;
            len = 0;
        } else if (state == IN && c == '#') {
            packet[len] = 0;
            recv(control, &c, 1, 0);
            recv(control, &c, 1, 0);
            return 1;
        } else if (state == IN && len + 1 < sizeof packet)
            packet[len++] = c;
    }
}

static int starts(const char *with) { return strncmp(packet, with, strlen(with)) == 0; }

/* As a stub would, which has just run to `ready`. */
static void answer_well(int pid) {
    unsigned long at = (unsigned long)ready;
    if (starts("vCont") || starts("vUlpfExec") || starts("vUlpfForkGo"))
        return;
    if (starts("interrupt") || starts("vUlpfHalt"))
        answer("T02thread:p%x.%x;", pid, pid);
    else if (starts("p10")) {
        char hex[17];
        for (int i = 0; i < 8; i++)
            sprintf(hex + 2 * i, "%02lx", at >> 8 * i & 0xff);
        answer("%s", hex);
    } else if (starts("p"))
        answer("0000000000000000");
    else if (starts("?"))
        answer("T05thread:p%x.%x;", pid, pid);
    else if (starts("qSupported"))
        answer("PacketSize=4000;swbreak+");
    else if (starts("qRcmd"))
        answer_in_hex("{\"watch\":0}\n");
    else
        answer("OK");
}

/* The task that runs in the target's memory and is not the target. */
static int find_stub(int target) {
    DIR *all = opendir("/proc");
    struct dirent *one;
    int found = 0;
    while (!found && (one = readdir(all))) {
        int pid = atoi(one->d_name);
        if (pid > 0 && pid != target && syscall(SYS_kcmp, pid, target, KCMP_VM, 0, 0) == 0)
            found = pid;
    }
    closedir(all);
    return found;
}

static char state_of(int pid) {
    char path[64], line[512], state = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (!file)
        return 0;
    if (fgets(line, sizeof line, file) && strrchr(line, ')'))
        state = strrchr(line, ')')[2];
    fclose(file);
    return state;
}

static void take_over(int target) {
    int stub;
    while (!find_stub(target))
        usleep(1000);
    /* It rests from the moment at which it has a stub until ulpf lets it go on. (The first one found may have been
     * on its way to make the stub.) */
    for (unsigned long then = *tick; *tick < then + 20;)
        usleep(1000);
    while (!(stub = find_stub(target)))
        usleep(1000);
    kill(stub, SIGSTOP);
    while (state_of(stub) != 'T')
        usleep(1000);
    int pidfd = syscall(SYS_pidfd_open, stub, 0);
    if (pidfd < 0)
        die("pidfd_open");
    for (int fd = 0; fd < 1024 && control < 0; fd++) {
        int got = syscall(SYS_pidfd_getfd, pidfd, fd, 0);
        struct stat is;
        if (got < 0 && errno == EPERM)
            die("pidfd_getfd");
        if (got >= 0 && fstat(got, &is) == 0 && S_ISSOCK(is.st_mode))
            control = got;
        else if (got >= 0)
            close(got);
    }
    if (control < 0)
        die("the stub has no socket");
    printf("forging %d\n", stub);
    fflush(stdout);
}

static void hex_of(const char *text, char *hex) {
    for (; *text; text++, hex += 2)
        sprintf(hex, "%02x", (unsigned char)*text);
}

static const char *what;

static int is(const char *word) { return strcmp(what, word) == 0; }

static void forge(int target, int number) {
    char path[256] = {0};
    hex_of("/proc/self/exe", path);
    if (is("exec"))
        notify("UlpfExec:%x;ffffff9c;%s;%x", target, path, number);
    else if (is("thread"))
        notify("UlpfExec:%x;ffffff9c;%s", number, path);
    else if (is("fork"))
        answer("T05fork:p%x.%x;thread:p%x.%x;", number, number, target, target);
    else if (is("vfork"))
        answer("T05vfork:p%x.%x;thread:p%x.%x;", number, number, target, target);
    else if (is("spawn")) {
        for (int i = 0; i < 100; i++)
            notify("UlpfExec:%x;ffffff9c;%s", target, path);
    } else if (is("strange"))
        notify("UlpfWhatever:%x", number);
    else if (is("notes"))
        flood("%UlpfExecFailed#61");
    else if (is("output"))
        flood("$O4848484848484848#af");
    else if (is("garbage"))
        flood("garbage");
    else if (is("packet")) {
        send(control, "$", 1, MSG_NOSIGNAL);
        flood("x");
    } else if (is("runs"))
        flood("$O0*~*~*~*~*~*~*~*~*~*~*~*~*~*~*~*~*~*~*~#f7");
    else if (is("many"))
        answer_in_hex("{\"watches\":[0,4294967295]}\n");
    else if (is("deep")) {
        static char deep[20000];
        memset(deep, '[', sizeof deep - 1);
        answer_in_hex(deep);
    } else if (is("nonsense"))
        do
            say("$", "\x7f}]*#$T05;;;fork:;thread:p-1.-1;watch:zz");
        while (receive());
    else if (is("truncated")) {
        send(control, "$T05thre", 8, MSG_NOSIGNAL);
        shutdown(control, SHUT_RDWR);
    } else if (is("silent"))
        while (receive())
            ;
    else if (is("stays"))
        while (receive()) {
            if (!starts("D"))
                answer_well(target);
        }
    else if (is("deaf"))
        pause();
    else if (is("close"))
        shutdown(control, SHUT_RDWR);
    else if (is("kill"))
        kill(target, SIGKILL);
    else if (is("die"))
        exit(0);
    else
        die(what);
    /* From here on as a stub would; ulpf may go on. */
    while (receive())
        answer_well(target);
    printf("done\n");
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "target") == 0) {
        open_clock(argv[2]);
        target();
    }
    if (argc != 7 || strcmp(argv[1], "forger") != 0)
        return 2;
    int pid = atoi(argv[2]), steps = atoi(argv[4]);
    open_clock(argv[3]);
    take_over(pid);
    /* It has been told to run to `ready`, and is there. */
    if (steps > 0)
        answer("T05thread:p%x.%x;", pid, pid);
    for (int step = 0; step < steps && receive(); step++)
        if (step + 1 < steps)
            answer_well(pid);
    what = argv[5];
    forge(pid, atoi(argv[6]));
    return 0;
}
