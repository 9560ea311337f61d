// Blocks that are freed by another function than belongs to the one that has allocated them.
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

int main(int, char **word)
{
    if (!strcmp(word[1], "forked")) {
        int *from_before = new int[10];
        if (pid_t child = fork()) {
            int status = -1;
            return waitpid(child, &status, 0) == child ? WEXITSTATUS(status) : 1;
        }
        delete[] from_before;
        free(new int);
    } else if (!strcmp(word[1], "free_of_new"))
        free(new int);
    else if (!strcmp(word[1], "delete_of_malloc"))
        delete static_cast<char *>(malloc(3));
    else if (!strcmp(word[1], "delete_of_array"))
        delete new int[10];
    else if (!strcmp(word[1], "none")) {
        std::string text(100, 'x');
        int *all = new int[10], *one = new int;
        delete[] all;
        delete one;
        // The nothrow operators call the throwing ones.
        for (int i = 0; i < 3; i++) {
            int *some = new (std::nothrow) int[10], *next = new int, *last = new (std::nothrow) int;
            delete next;
            delete last;
            delete[] some;
        }
        // The heap has to grow first.
        for (size_t size = 1 << 20; size < 200 << 20; size *= 2) {
            char *large = new char[size];
            int *next = new int;
            delete next;
            delete[] large;
        }
        return text.size() == 100 ? 0 : 1;
    }
    return 5;
}
