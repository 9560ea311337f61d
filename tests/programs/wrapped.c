// Starts what its arguments say, in one of the ways in which wrappers do: for programs that are watched behind others.
//
//     wrapped fork|vfork|spawn|exec PROGRAM [ARGUMENT]…
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    pid_t child = -1;
    if (strcmp(argv[1], "exec") == 0)
        return execvp(argv[2], argv + 2);
    if (strcmp(argv[1], "fork") == 0)
        child = fork();
    else if (strcmp(argv[1], "vfork") == 0)
        child = vfork();
    else if (posix_spawnp(&child, argv[2], NULL, NULL, argv + 2, environ) != 0)
        return 3;
    if (child == 0) {
        execvp(argv[2], argv + 2);
        _exit(127);
    }
    int status;
    waitpid(child, &status, 0);
    return WEXITSTATUS(status);
}
