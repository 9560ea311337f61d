/* A local of one thread, while another thread stops: break ready; run; up; ulpf watch mine; break tick */
#include <pthread.h>
#include <semaphore.h>

static sem_t go, done;

__attribute__((noinline)) void ready(void)
{
    __asm__ volatile("");
}

__attribute__((noinline)) void tick(void)
{
    __asm__ volatile("");
}

__attribute__((noinline)) static void rounds(void)
{
    volatile long mine = 0;
    ready();
    sem_post(&done);
    for (int i = 1; i <= 2; i++) {
        sem_wait(&go);
        mine = mine + i;
        sem_post(&done);
    }
}

static void *work(void *unused)
{
    rounds();
    return unused;
}

int main(void)
{
    pthread_t thread;
    sem_init(&go, 0, 0);
    sem_init(&done, 0, 0);
    pthread_create(&thread, NULL, work, NULL);
    sem_wait(&done);
    for (int i = 0; i < 2; i++) {
        tick();
        sem_post(&go);
        sem_wait(&done);
        tick();
    }
    pthread_join(thread, NULL);
    return 0;
}
