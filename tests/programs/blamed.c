/* A pointer or the heap's books have been overwritten, and the program ends: the argument says how. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct session {
    char name[8];
    struct session *peer;
    int state;
    void (*done)(void);
};
static struct session *session;
static struct session *statically;
static char *blocks[100];

#define FUNCTION static __attribute__((noinline))
FUNCTION void rename_by_loop(struct session *s, const char *to) { char *p = s->name; while ((*p++ = *to++)) ; }
FUNCTION void rename_by_strcpy(struct session *s, const char *to) { strcpy(s->name, to); }
FUNCTION void forget_peer(struct session *s) { s->peer = NULL; }
FUNCTION void overwrite(void *at) { memset(at, 0x41, 8); }
FUNCTION void receive(struct session *s)
{
    int ends[2];
    char text[8] = "\x10\x32\x54\x76\x98\xba";
    if (pipe(ends) || write(ends[1], text, 8) != 8 || read(ends[0], &s->peer, 8) != 8)
        exit(2);
}
FUNCTION void set_statically(void) { statically = (struct session *)0x1234560; }
FUNCTION void cut_list(struct session *s) { s->peer = (struct session *)0x7654320; }
FUNCTION void overflow_by_loop(char *p, int n) { for (int i = 0; i < n; i++) ((volatile char *)p)[i] = 'x'; }
FUNCTION void overflow_by_memset(char *p, int n) { memset(p, 'y', n); }
FUNCTION void one_word_too_far(char *p) { *(unsigned long *)(p + 104) = 0x91; }
FUNCTION void fits(char *p, int n) { memset(p, 'z', n); }

FUNCTION int use(struct session *s) { return s->peer->state; }
FUNCTION int use_statically(void) { return statically->state; }
FUNCTION void finish(struct session *s) { s->done(); }
FUNCTION int walk(struct session *s) { int all = 0; for (; s; s = s->peer) all += s->state; return all; }
static void *in_its_arena(void *how)
{
    char *own[3];
    for (int i = 0; i < 3; i++)
        fits(own[i] = malloc(100), 100);
    overflow_by_loop(own[1], 110);
    for (int i = 0; i < 3; i++)
        free(own[i]);
    return how;
}
static void nothing(void) {}
static void *worker(void *s) { rename_by_loop(s, "a name too long"); return 0; }

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "";
    session = calloc(1, sizeof *session);
    session->peer = session, session->done = nothing;
    finish(session);
    for (int i = 0; i < 100; i++)
        fits(blocks[i] = malloc(100), 100);
    for (int i = 0; i < 1000; i++) {
        char *block = malloc(i % 500 + 1);
        fits(block, i % 500 + 1);
        free(block);
    }
    if (!strcmp(how, "loop")) rename_by_loop(session, "a name too long");
    if (!strcmp(how, "strcpy")) rename_by_strcpy(session, "a name too long");
    if (!strcmp(how, "null")) forget_peer(session);
    if (!strcmp(how, "read")) receive(session);
    if (!strcmp(how, "call")) overwrite(&session->done), finish(session);
    if (!strcmp(how, "static")) { set_statically(); return use_statically(); }
    if (!strcmp(how, "list")) {
        struct session *s = session;
        for (int i = 0; i < 20; i++, s = s->peer)
            s->peer = calloc(1, sizeof *s);
        cut_list(session->peer->peer);
        return walk(session);
    }
    if (!strcmp(how, "thread")) {
        pthread_t thread;
        pthread_create(&thread, 0, worker, session);
        pthread_join(thread, 0);
    }
    if (!strcmp(how, "arena")) {
        pthread_t thread;
        pthread_create(&thread, 0, in_its_arena, 0);
        pthread_join(thread, 0);
    }
    if (!strcmp(how, "block-loop")) overflow_by_loop(blocks[50], 110);
    if (!strcmp(how, "block-memset")) overflow_by_memset(blocks[70], 120);
    if (!strcmp(how, "block-size")) one_word_too_far(blocks[20]);
    for (int i = 0; i < 100; i++)
        free(blocks[i]);
    free(malloc(5000));
    return use(session);
}
