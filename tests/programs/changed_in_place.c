/* Memory of the heap gets another protection, or loses its content, again and again.
 *
 * `changed_in_place counts N` makes each sort of call N times, and prints the number of the thread's waits meanwhile (of
 * page faults for `detach`).
 * `changed_in_place random SEED N` makes N random calls and accesses. It prints a checksum of results, contents and faults.
 * `changed_in_place unmapped SEED N` does the same in memory of its own that it unmaps, too.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE 4096ul
#define PAGES 24
static unsigned char *volatile pages;
static sigjmp_buf out;

static void fault(int number)
{
	siglongjmp(out, number);
}

static long waits(void)
{
	struct rusage usage;

	getrusage(RUSAGE_THREAD, &usage);
	return usage.ru_nvcsw;
}

#define COUNT(name, call) \
	do { \
		long before = waits(); \
		for (int i = 0; i < n; i++) \
			if (call) \
				return perror(name), 1; \
		printf("%s %ld\n", name, waits() - before); \
	} while (0)

static int map_and_unmap(void)
{
	unsigned char *volatile new = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (new == MAP_FAILED)
		return 1;
	new[PAGE] = 1;
	return munmap(new, 4 * PAGE);
}

static int attach_and_detach(int segment)
{
	volatile char *at = shmat(segment, NULL, 0);

	if (at == (void *)-1)
		return 1;
	*at = 1;
	return shmdt((void *)at);
}

static long page_faults(void)
{
	struct rusage usage;

	getrusage(RUSAGE_THREAD, &usage);
	return usage.ru_minflt;
}

/* Faults of the heap's pages while other memory comes and goes. */
static int detaches(int n)
{
	int segment = shmget(IPC_PRIVATE, 4 * PAGE, IPC_CREAT | 0600);
	long before = page_faults();

	for (int i = 0; segment >= 0 && i < n; i++) {
		if (attach_and_detach(segment))
			return 1;
		for (int page = 0; page < PAGES; page++)
			pages[page * PAGE] = i;
	}
	printf("detach %ld\n", page_faults() - before);
	return segment >= 0 && shmctl(segment, IPC_RMID, NULL);
}

static int counts(int n)
{
	if (detaches(n))
		return perror("detach"), 1;
	COUNT("unmap", map_and_unmap());
	COUNT("same", mprotect(pages + PAGE, PAGE, PROT_READ | PROT_WRITE));
	COUNT("free", madvise(pages + PAGE, 2 * PAGE, MADV_FREE));
	COUNT("protect", mprotect(pages + PAGE, PAGE, i & 1 ? PROT_READ | PROT_WRITE : PROT_READ));
	COUNT("discard", madvise(pages + 3 * PAGE, 2 * PAGE, MADV_DONTNEED));
	return 0;
}

static uint64_t state, sum;
static int unmaps;

static uint64_t random_below(uint64_t n)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state % n;
}

static void add(uint64_t value)
{
	sum = (sum ^ value) * 0x9e3779b97f4a7c15;
	sum ^= sum >> 29;
}

static int random_calls(uint64_t seed, int n)
{
	static const int rights[] = {PROT_NONE, PROT_READ, PROT_WRITE, PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE,
				     PROT_READ};
	int pair[2];

	state = seed * 0x9e3779b97f4a7c15 + 1;
	signal(SIGSEGV, fault);
	if (pipe(pair))
		return 1;
	while (n--) {
		uint64_t page = random_below(PAGES), many = 1 + random_below(random_below(4) ? 2 : 6);
		unsigned char *volatile at = pages + page * PAGE + (random_below(40) == 0);
		size_t length = many * PAGE - random_below(PAGE);
		char bytes[64] = "some bytes from the kernel";
		int faulted;

		if (page + many > PAGES)
			continue;
		errno = 0;
		switch (random_below(12)) {
		case 0: case 1: case 2:
			add(syscall(SYS_mprotect, at, length, rights[random_below(6)]));
			break;
		case 3: case 4:
			add(madvise(at, length, MADV_DONTNEED));
			break;
		case 5: /* its content may stay or go: it is put there anew */
			add(madvise(at, length, MADV_FREE));
			faulted = sigsetjmp(out, 1);
			if (!faulted)
				memset(pages + page * PAGE, 7, many * PAGE);
			add(faulted);
			if (faulted) { /* some of it has not been reached */
				if (!mprotect(pages + page * PAGE, many * PAGE, PROT_READ | PROT_WRITE))
					memset(pages + page * PAGE, 8, many * PAGE);
			}
			break;
		case 6:
			if (unmaps && random_below(2) == 0) {
				add(munmap(at, length));
			} else if (random_below(unmaps ? 2 : 8) == 0) {
				add(mmap(pages + page * PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) !=
				    MAP_FAILED);
			} else if (random_below(4) == 0) {
				add(mlock(pages + page * PAGE, PAGE));
				add(madvise(pages + page * PAGE, PAGE, MADV_DONTNEED));
				add(munlock(pages + page * PAGE, PAGE));
			}
			break;
		case 7: /* the kernel writes there */
			add(write(pair[1], bytes, sizeof bytes));
			if (read(pair[0], pages + page * PAGE + 8, sizeof bytes) < 0) {
				add(errno);
				add(read(pair[0], bytes, sizeof bytes));
			}
			break;
		case 8: case 9:
			faulted = sigsetjmp(out, 1);
			if (!faulted)
				memset(pages + page * PAGE + random_below(PAGE - 80), (int)state, 64);
			add(faulted);
			break;
		default:
			faulted = sigsetjmp(out, 1);
			if (!faulted)
				for (int i = 0; i < 200; i++)
					add(*(volatile unsigned char *)(pages + page * PAGE + random_below(PAGE)));
			add(faulted);
			break;
		}
		add(errno);
	}
	for (int page = 0; page < PAGES; page++)
		mmap(pages + page * PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	mprotect(pages, PAGES * PAGE, PROT_READ | PROT_WRITE);
	for (size_t i = 0; i < PAGES * PAGE; i++)
		add(pages[i]);
	printf("changed_in_place: %lx\n", sum);
	return 0;
}

int main(int argc, char **argv)
{
	unsigned char *block = malloc((PAGES + 2) * PAGE);

	if (!block || argc < 3)
		return 2;
	memset(block, 1, (PAGES + 2) * PAGE);
	pages = (unsigned char *)(((uintptr_t)block + 64 + PAGE) & -PAGE);
	if (!strcmp(argv[1], "counts"))
		return counts(atoi(argv[2]));
	if (!strcmp(argv[1], "unmapped")) {
		/* Where the kernel puts nothing else. */
		pages = mmap((void *)(1ul << 40), PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
		if (pages == MAP_FAILED)
			return 1;
		unmaps = 1;
	}
	return argc == 4 ? random_calls(strtoul(argv[2], NULL, 0), atoi(argv[3])) : 2;
}
