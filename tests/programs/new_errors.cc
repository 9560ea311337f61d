// Blocks that are freed by another function than belongs to the one that has allocated them.
#include <cstdlib>
#include <cstring>
#include <string>

int main(int, char **word)
{
    if (!strcmp(word[1], "free_of_new"))
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
        return text.size() == 100 ? 0 : 1;
    }
    return 5;
}
