// heap_model.c with new and delete, and with frees that do not match.
#include "heap_model.c"
