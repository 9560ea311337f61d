/*
 * Random calls about memory, around allocation: each call's result, error and what is in memory afterwards are printed.
 *
 *     life SEED CALLS [THREADS [plain]]
 *
 * No address is printed that the kernel has chosen: what it says depends on the seed alone. So the same program under ulpf
 * has to say the same. With THREADS, others allocate and write meanwhile. With `plain` no private mapping of a file lies in
 * `area`: a watched one does not show later changes of its file (docs/limits.md).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#define PAGES 96ul
#define BLOCKS 48
#define MAPS 12

/* For calls with fixed addresses: no other memory is near. */
char area[(PAGES + 1) * PAGE] __attribute__((aligned(4096)));

static unsigned long long state, sum;
static unsigned number;
static int plain;

/* As in "xorshift64*". */
static unsigned long random_below(unsigned long limit)
{
	state ^= state >> 12;
	state ^= state << 25;
	state ^= state >> 27;
	return (state * 2685821657736338717ull >> 33) % limit;
}

static void tell(const char *what, long result)
{
	long error = result == -1 ? errno : 0;

	printf("%u %s %ld %ld\n", number, what, result, error);
}

/* For calls that return an address of their own choice. */
static void tell_made(const char *what, void *result)
{
	long error = result == MAP_FAILED ? errno : 0;

	printf("%u %s %s %ld\n", number, what, result == MAP_FAILED ? "no" : "yes", error);
}

static void add(const void *from, size_t length)
{
	const unsigned char *byte = from;

	for (size_t at = 0; at < length; at++)
		sum = (sum ^ byte[at]) * 1099511628211ull;
}

static sigjmp_buf back;
static volatile sig_atomic_t guarded;
static volatile int fault_code, fault_signal;
static char *volatile fault_address;

static void on_fault(int signal, siginfo_t *info, void *context)
{
	(void)context;
	if (!guarded)
		_exit(99);
	guarded = 0;
	fault_signal = signal;
	fault_code = info->si_code;
	fault_address = info->si_addr;
	siglongjmp(back, 1);
}

/* Reads or writes a few bytes; prints a fault with the kernel's signal information. */
static void touch(char *at, size_t length, int writes)
{
	volatile char *byte = at;

	if (sigsetjmp(back, 1)) {
		printf("%u fault %d %d %ld\n", number, fault_signal, fault_code, (long)(fault_address - at));
		return;
	}
	guarded = 1;
	for (size_t n = 0; n < length; n++) {
		if (writes)
			byte[n] = (char)(number + n);
		else
			sum = (sum ^ (unsigned char)byte[n]) * 1099511628211ull;
	}
	guarded = 0;
}

static struct block {
	char *at;
	size_t length;
	unsigned char fill;
} blocks[BLOCKS];

static void check_block(struct block *block)
{
	for (size_t n = 0; n < block->length; n++)
		if ((unsigned char)block->at[n] != block->fill) {
			printf("%u block differs at %zu of %zu\n", number, n, block->length);
			exit(97);
		}
}

static size_t some_length(void)
{
	switch (random_below(8)) {
	case 0:
		return random_below(64);
	case 1:
		return 4096 + random_below(70000);
	case 2:
		return random_below(20) ? 1000 : 1 << 21;
	default:
		return random_below(2000);
	}
}

static void allocate(void)
{
	struct block *block = &blocks[random_below(BLOCKS)];
	size_t length = some_length(), before = block->length;
	int way = random_below(6);
	char *made = NULL;

	if (block->at && way == 0) {
		check_block(block);
		made = realloc(block->at, length + 1);
		if (made) {
			for (size_t n = 0; n < (before < length + 1 ? before : length + 1); n++)
				if ((unsigned char)made[n] != block->fill) {
					printf("%u realloc lost byte %zu\n", number, n);
					exit(97);
				}
			length++;
		}
	} else {
		if (block->at) {
			check_block(block);
			free(block->at);
		}
		if (way == 1) {
			made = calloc(1, length);
			for (size_t n = 0; made && n < length; n++)
				if (made[n]) {
					printf("%u calloc is not zero at %zu\n", number, n);
					exit(97);
				}
		} else if (way == 2) {
			made = memalign(1ul << (4 + random_below(10)), length);
		} else if (way == 3) {
			void *out = NULL;
			int got = posix_memalign(&out, 1ul << random_below(14), length);

			printf("%u posix_memalign %d\n", number, got);
			made = out;
		} else {
			made = malloc(length);
		}
	}
	block->at = made;
	block->length = made ? length : 0;
	block->fill = number;
	if (made)
		memset(made, block->fill, length);
	printf("%u block %d\n", number, made != NULL);
}

static void release(void)
{
	struct block *block = &blocks[random_below(BLOCKS)];

	if (!block->at)
		return;
	check_block(block);
	free(block->at);
	block->at = NULL;
	block->length = 0;
}

/* Pages of the area. */
static char *some_pages(size_t *length)
{
	size_t first = random_below(PAGES), count = 1 + random_below(random_below(8) ? 4 : PAGES - first);

	if (first + count > PAGES)
		count = PAGES - first;
	*length = count * PAGE;
	return area + first * PAGE;
}

static int some_rights(void)
{
	switch (random_below(9)) {
	case 0:
		return PROT_READ;
	case 1:
		return PROT_NONE;
	case 2:
		return PROT_WRITE;
	default:
		return PROT_READ | PROT_WRITE;
	}
}

static struct map {
	char *at;
	size_t length;
} maps[MAPS];

static int file = -1;

static void look_at_all(void)
{
	for (size_t page = 0; page < PAGES; page += 1 + random_below(8))
		touch(area + page * PAGE + random_below(PAGE - 8), 8, 0);
	for (int n = 0; n < MAPS; n++)
		if (maps[n].at)
			touch(maps[n].at + random_below(maps[n].length), 1, 0);
	for (int n = 0; n < BLOCKS; n++)
		if (blocks[n].at)
			check_block(&blocks[n]);
	printf("%u sum %llx\n", number, sum);
}

static void map_anywhere(void)
{
	struct map *map = &maps[random_below(MAPS)];
	size_t length = (1 + random_below(40)) * PAGE;
	int shared = random_below(3) == 0;
	void *made;

	if (map->at) {
		tell("munmap", munmap(map->at, map->length));
		map->at = NULL;
		return;
	}
	if (file >= 0 && random_below(2))
		made = mmap(NULL, length, some_rights(), shared ? MAP_SHARED : MAP_PRIVATE, file, random_below(4) * PAGE);
	else
		made = mmap(NULL, length, some_rights(), (shared ? MAP_SHARED : MAP_PRIVATE) | MAP_ANONYMOUS, -1, 0);
	tell_made("mmap", made);
	if (made != MAP_FAILED) {
		map->at = made;
		map->length = length;
	}
}

static void remap(void)
{
	struct map *map = &maps[random_below(MAPS)];
	size_t length = (1 + random_below(40)) * PAGE, old;
	char *from, *to;
	void *made;

	if (random_below(2)) {
		/* Within the area; of one page, since more may be several mappings, or one, as the kernel likes. */
		from = some_pages(&old);
		old = PAGE;
		to = some_pages(&length);
		made = mremap(from, old, length, MREMAP_MAYMOVE | MREMAP_FIXED, to);
		tell_made("mremap fixed", made);
		return;
	}
	if (!map->at)
		return;
	made = mremap(map->at, map->length, length, MREMAP_MAYMOVE);
	tell_made("mremap", made);
	if (made != MAP_FAILED) {
		map->at = made;
		map->length = length;
	}
}

static void map_fixed(void)
{
	size_t length;
	char *at = some_pages(&length);
	int shared = random_below(4) == 0;
	void *made;

	if (file >= 0 && random_below(3) == 0)
		made = mmap(at, length, some_rights(), (shared || plain ? MAP_SHARED : MAP_PRIVATE) | MAP_FIXED, file, random_below(4) * PAGE);
	else
		made = mmap(at, length, some_rights(), (shared ? MAP_SHARED : MAP_PRIVATE) | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	tell("mmap fixed", made == MAP_FAILED ? -1 : (char *)made - at);
}

static void advise(void)
{
	static const int all[] = { MADV_NORMAL, MADV_DONTNEED, MADV_DONTNEED, MADV_WILLNEED, MADV_DONTFORK, MADV_DOFORK,
				   MADV_NOHUGEPAGE, MADV_SEQUENTIAL, MADV_DONTDUMP, MADV_DODUMP, 21 /* PAGEOUT */, 20 /* COLD */,
				   MADV_WIPEONFORK, MADV_KEEPONFORK, 22, 23, 12345 };
	size_t length;
	char *at = some_pages(&length);
	int advice = all[random_below(sizeof(all) / sizeof(all[0]))];
	char what[32];

	snprintf(what, sizeof(what), "madvise %d", advice);
	tell(what, madvise(at, length, advice));
}

/* Overwrites memory whose contents are undefined after a call that failed or ended early. */
static void write_over(char *at, size_t length)
{
	char *end = at + length;

	for (at -= (uintptr_t)at % PAGE; at < end; at += PAGE)
		touch(at, PAGE, 1);
}

static void by_kernel(void)
{
	static char buffer[8 * PAGE];
	size_t length;
	char *at = some_pages(&length);
	int pipes[2];
	long sent, got;

	at += random_below(PAGE);
	length = 1 + random_below(6 * PAGE);
	if (at + length > area + PAGES * PAGE)
		length = area + PAGES * PAGE - at;
	switch (random_below(5)) {
	case 0:
		if (pipe2(pipes, O_NONBLOCK))
			return;
		memset(buffer, number, length);
		sent = write(pipes[1], buffer, length);
		got = read(pipes[0], at, sent);
		tell("read", got);
		if (got < sent)
			write_over(got < 0 ? at : at + got, got < 0 ? length : length - got);
		close(pipes[0]);
		close(pipes[1]);
		break;
	case 1:
		if (pipe2(pipes, O_NONBLOCK))
			return;
		got = write(pipes[1], at, length);
		tell("write", got);
		got = read(pipes[0], buffer, sizeof(buffer));
		if (got > 0)
			add(buffer, got);
		close(pipes[0]);
		close(pipes[1]);
		break;
	case 2: {
		struct iovec here = { buffer, length }, there = { at, length };

		/* The kernel does not read what may be written only; where it is watched, it may be read. */
		if (!plain) {
			got = process_vm_readv(getpid(), &here, 1, &there, 1, 0);
			tell("process_vm_readv", got);
			if (got > 0)
				add(buffer, got);
			break;
		}
		memset(buffer, number, length);
		got = process_vm_writev(getpid(), &here, 1, &there, 1, 0);
		tell("process_vm_writev", got);
		if (got < (long)length)
			write_over(got < 0 ? at : at + got, got < 0 ? length : length - got);
		break;
	}
	case 3: {
		struct iovec parts[2] = { { at, length / 2 }, { buffer, 100 } };

		if (file < 0)
			return;
		got = preadv(file, parts, 2, random_below(5 * PAGE));
		tell("preadv", got);
		if (got < (long)length / 2)
			write_over(got < 0 ? at : at + got, got < 0 ? length / 2 : length / 2 - got);
		break;
	}
	default:
		if (file < 0)
			return;
		/* Not out of the area, which may show the same pages of the file. */
		memset(buffer, number, length);
		tell("pwrite", pwrite(file, buffer, length, random_below(3 * PAGE)));
	}
}

static void shared_segment(void)
{
	size_t length;
	char *at = some_pages(&length);
	int id = shmget(IPC_PRIVATE, length, IPC_CREAT | 0600);
	void *got;

	tell("shmget", id < 0 ? -1 : 0);
	if (id < 0)
		return;
	if (random_below(2)) {
		got = shmat(id, at, SHM_REMAP);
		tell("shmat", got == (void *)-1 ? -1 : (char *)got - at);
	} else {
		got = shmat(id, NULL, 0);
		tell_made("shmat anywhere", got);
	}
	shmctl(id, IPC_RMID, NULL);
	if (got == (void *)-1)
		return;
	touch(got, 16, 1);
	touch(got, 16, 0);
	if (random_below(4) || got != at)
		tell("shmdt", shmdt(got));
}

static void child(void)
{
	int status = 0, steps = 1 + random_below(4);
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid < 0) {
		tell("fork", -1);
		return;
	}
	if (!pid) {
		look_at_all();
		for (int n = 0; n < steps; n++) {
			touch(area + random_below(PAGES) * PAGE, 16, 1);
			allocate();
			release();
		}
		look_at_all();
		fflush(stdout);
		_exit(number & 63);
	}
	waitpid(pid, &status, 0);
	printf("%u child %x\n", number, status);
}

static void break_of_data(void)
{
	/* Up and down again, so that malloc's own memory is left as it is. */
	long step = (1 + random_below(20)) * PAGE;
	char *before = sbrk(0), *made;

	made = sbrk(step);
	tell("sbrk", made == (void *)-1 ? -1 : made - before);
	if (made == (void *)-1)
		return;
	touch(made + step - 9, 9, 1);
	touch(made + random_below(step), 1, 0);
	if (sbrk(0) == made + step) {
		made = sbrk(-step);
		tell("sbrk back", made == (void *)-1 ? -1 : 0);
	}
}

static void library(void)
{
	void *handle = dlopen("libm.so.6", RTLD_NOW), *found = NULL;

	if (handle)
		found = dlsym(handle, "cos");
	printf("%u dlopen %d %d\n", number, handle != NULL, found != NULL);
	if (handle)
		dlclose(handle);
}

static void lock(void)
{
	size_t length;
	char *at = some_pages(&length);

	switch (random_below(5)) {
	case 0:
		tell("mlock", mlock(at, length));
		break;
	case 1:
		tell("munlock", munlock(at, length));
		break;
	case 2:
		if (random_below(100) == 0) {
			tell("mlockall", mlockall(random_below(2) ? MCL_CURRENT : MCL_FUTURE));
			break;
		}
		/* fallthrough */
	case 3:
		tell("mlock2", syscall(SYS_mlock2, at, length, MLOCK_ONFAULT));
		break;
	default:
		tell("munlockall", munlockall());
	}
}

static void odd_call(void)
{
	size_t length;
	char *at = some_pages(&length);
	unsigned char resident[PAGES];

	switch (random_below(8)) {
	case 0:
		tell("mprotect unaligned", mprotect(at + 1, length, PROT_READ));
		break;
	case 1:
		tell("munmap unaligned", munmap(at + 7, length));
		break;
	case 2:
		tell("mincore", mincore(at, length, resident));
		break;
	case 3:
		tell("msync", msync(at, length, random_below(2) ? MS_SYNC : MS_ASYNC));
		break;
	case 4: {
		void *made = mmap(at, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

		tell("mmap no replace", made == MAP_FAILED ? -1 : (char *)made - at);
		break;
	}
	case 5:
		tell("mremap in place", mremap(at, PAGE, 2 * PAGE, 0) == MAP_FAILED ? -1 : 0);
		break;
	case 6:
		tell("mmap of nothing", mmap(NULL, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED ? -1 : 0);
		break;
	default:
		tell_made("mremap over itself", mremap(at, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, at + PAGE / 2));
	}
}

static void new_file(void)
{
	if (file < 0) {
		file = memfd_create("life", 0);
		tell("memfd_create", file < 0 ? -1 : 0);
	}
	tell("ftruncate", ftruncate(file, random_below(8) * PAGE));
}

/* The rest of its calls are made by the program that it is then. */
static void again(char **words, unsigned left)
{
	char seed[32], calls[32];

	snprintf(seed, sizeof(seed), "%lu", random_below(1ul << 30) + 1);
	snprintf(calls, sizeof(calls), "%u", left);
	printf("%u exec\n", number);
	fflush(stdout);
	if (file >= 0)
		close(file);
	execl("/proc/self/exe", words[0], seed, calls, words[3], words[3] ? words[4] : NULL, NULL);
	tell("exec", -1);
}

static void *others(void *seed)
{
	unsigned long mine = (unsigned long)seed * 7919 + 1;
	char *held[16] = { NULL };
	size_t lengths[16];

	for (;;) {
		unsigned which = (mine = mine * 6364136223846793005ul + 1) >> 60;

		if (held[which]) {
			for (size_t n = 0; n < lengths[which]; n++)
				if (held[which][n] != (char)which)
					_exit(98);
			free(held[which]);
			held[which] = NULL;
		} else {
			lengths[which] = (mine >> 40) % 3000 + 1;
			held[which] = malloc(lengths[which]);
			memset(held[which], which, lengths[which]);
		}
		if ((mine >> 33) % 64 == 0)
			usleep(200);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	unsigned calls = argc > 2 ? strtoul(argv[2], NULL, 0) : 1000, threads = argc > 3 && argv[3] ? strtoul(argv[3], NULL, 0) : 0;
	struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };

	plain = argc > 4;
	state = strtoull(argc > 1 ? argv[1] : "1", NULL, 0) * 0x9e3779b97f4a7c15ull | 1;
	sigaction(SIGSEGV, &action, NULL);
	sigaction(SIGBUS, &action, NULL);
	for (unsigned long n = 0; n < threads; n++) {
		pthread_t thread;

		if (pthread_create(&thread, NULL, others, (void *)n))
			return 4;
	}
	for (number = 0; number < calls; number++) {
		size_t length;
		char *at;

		switch (random_below(32)) {
		case 0 ... 5:
			allocate();
			break;
		case 6 ... 8:
			release();
			break;
		case 9:
		case 10:
			map_anywhere();
			break;
		case 11 ... 13:
			map_fixed();
			break;
		case 14:
			at = some_pages(&length);
			tell("mprotect", mprotect(at, length, some_rights()));
			break;
		case 15:
		case 16:
			advise();
			break;
		case 17:
			remap();
			break;
		case 18:
			at = some_pages(&length);
			if (random_below(2))
				length = PAGE;
			tell("munmap", munmap(at, length));
			break;
		case 19:
		case 20:
			by_kernel();
			break;
		case 21:
			shared_segment();
			break;
		case 22:
			lock();
			break;
		case 23:
			odd_call();
			break;
		case 24:
			new_file();
			break;
		case 25:
			if (random_below(8) == 0)
				child();
			else
				break_of_data();
			break;
		case 26:
			if (random_below(4) == 0)
				library();
			break;
		case 27:
			look_at_all();
			break;
		case 28:
			if (random_below(200) == 0)
				again(argv, calls - number);
			break;
		default:
			touch(area + random_below(PAGES * PAGE - 32), 1 + random_below(32), random_below(2));
		}
	}
	look_at_all();
	for (int n = 0; n < BLOCKS; n++)
		free(blocks[n].at);
	printf("end %llx\n", sum);
	fflush(stdout);
	_exit(sum & 7);
}
