/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note OR MIT */
/*
 * The device interface of ulpf: user-level page faults.
 *
 * Several machines implement it: the Linux module (kernel/), and simulators of the
 * hardware that the thesis proposes. Feature bits say which parts a machine has.
 *
 * Overview
 * ========
 *
 * open("/dev/ulpf", O_RDWR | O_CLOEXEC) makes a *guarded address space* and binds it to
 * the mm of the opening process. It has
 *
 *   - a store: sparse memory of ULPF_STORE_SIZE bytes, all zero, swappable, charged to
 *     the process that touches it first. It can be mapped any number of times, in two
 *     ways: guarded, and as an unguarded alias. A handler makes the forbidden access
 *     through the alias, so no other thread ever finds the guarded page open;
 *   - permissions, two bits for each page of *address space* (not of the store),
 *     that apply where a guarded mapping of this descriptor is;
 *   - a handler: user code that the machine enters, on the thread itself and without
 *     a signal, when an access is forbidden by these permissions;
 *   - a ring of events: accesses that no instruction of the program made (the kernel's
 *     own), and accesses to guard ranges.
 *
 * A process may open the device several times; the spaces are independent of each
 * other. Only the process that opened may change its space. From any other mm, all
 * ioctls but ULPF_QUERY and ULPF_COUNTS fail with EPERM, and so does mmap() of
 * everything but the ring. Such an mm is a forked child's, the program's after exec, or
 * that of a process that received the descriptor. Every holder of the descriptor may
 * use read(), poll() and mmap() of the ring, so that a monitor can be another process.
 *
 * Mapping
 * =======
 *
 * mmap(addr, length, prot, MAP_SHARED, fd, OFFSET) where OFFSET is one of
 *
 *   ULPF_MAP_GUARD + x   the store from x on, guarded. May not be moved (mremap:
 *                        EINVAL): permissions belong to addresses. munmap clears
 *                        the permissions and guards of its range, except those
 *                        that live in a PLI region, which is the user's memory.
 *   ULPF_MAP_ALIAS + x   the same store, open.
 *   ULPF_MAP_PLI + n*4096  PLI page n (see below), 0 <= n < ULPF_PLI_PAGES
 *   ULPF_MAP_RING        the event ring, read only, after ULPF_RING; as large as
 *                        its header says
 *
 * MAP_PRIVATE is EINVAL, so are a range beyond the store and a ring mapped writable;
 * mapping the ring before it exists is ENXIO. Accesses that the program's own
 * mprotect() forbids are a SIGSEGV as usual, and no upcall. madvise(MADV_REMOVE) frees
 * memory of the store, which reads as zero then. Transparent huge pages are not used.
 *
 * Permissions
 * ===========
 *
 *   ULPF_RW    0  nothing is forbidden
 *   ULPF_RO    1  stores fault
 *   ULPF_EXE   2  loads and stores fault, instruction fetches do not (only with
 *                 ULPF_FEATURE_EXE; EOPNOTSUPP else)
 *   ULPF_NONE  3  everything faults (the thesis's spare value, put to use for
 *                 read watches)
 *
 * They are the thesis's USER_RW, USER_RO and USER_EXE (section 3.4). A read-modify-
 * write instruction is a store. The Linux module has no ULPF_FEATURE_EXE. An executable
 * page is readable in x86 page tables. An access to a page that a protection key makes
 * execute-only is a SIGSEGV before any driver is called.
 *
 * Where they live: the page with address A has the bits 2*k and 2*k+1 of the 128
 * bytes (a *region*) of its 2 MiB prefix A >> 21, k being (A >> 12) & 511. A region
 * is either the machine's own (made when needed, changed with ULPF_OP_SET), or the
 * user's:
 *
 *   PLI pages ("page level indicators", thesis section 3.3.2) are mapped from the
 *   device and hold 32 regions each. Region 0 is the library's, for free_regions, prev
 *   and next; the machine never looks at it. ULPF_OP_BIND makes a region govern a
 *   prefix (the thesis's sys_set_ro()). From then on a plain store to the region
 *   changes permissions, without a system call:
 *
 *     - With ULPF_FEATURE_PLI_LOOSEN a store that permits more is honoured at the
 *       next fault. To the program that is at once. (Linux module, simulators)
 *     - With ULPF_FEATURE_PLI_TIGHTEN a store that permits less is honoured at the
 *       next access. (Simulators.) Without that feature it is honoured at the latest after
 *       ULPF_OP_SYNC for the page, the thesis's SET_TLB_RO. Until then TLBs may hold
 *       the page as open.
 *
 *   ULPF_OP_SET works on bound prefixes, too: it writes the region, and syncs. It
 *   changes bytes with single locked instructions; a concurrent store by the user to
 *   the same byte should be one, too.
 *
 *   On a machine without ULPF_FEATURE_EXE, the value ULPF_EXE in a region means
 *   ULPF_NONE.
 *
 * The upcall
 * ==========
 *
 * ULPF_HANDLER registers the address of the handler. When an instruction of the program
 * makes an access that the permissions forbid, no part of the access is done, and the
 * thread continues at the handler. All registers keep their values, except rip, rsp,
 * and the flags DF, TF, RF, AC and NT, which are clear. At (%rsp), aligned to 16, lies
 *
 *       struct ulpf_frame       + 0  addr    first byte forbidden (CR17)
 *                               + 8  info    ULPF_INFO_*
 *                               +16  cookie  as registered
 *                               +24  ip   \
 *                               +32  cs    |
 *                               +40  flags | what `iretq` takes, in user mode, too
 *                               +48  sp    |
 *                               +56  ss   /
 *
 * So `add $24, %rsp; iretq` is ULIRET: it continues the program, by default with the
 * same instruction. That faults again if the handler has not permitted the access. A
 * handler that has made the access itself, through the alias, adds the instruction's
 * length to `ip`; it may change every word of the frame. The machine keeps nothing
 * about a handler that runs: leaving it by longjmp, or a thread's end in it, need no
 * call.
 *
 * There is a cheaper way back than iretq (and QEMU before 9.1 faults at an iretq in
 * user mode). With cs and ss as usual, put `ip` on the program's stack, just below the
 * red zone, lower the frame's `sp` to it, and after the registers
 *
 *       add $40, %rsp; popfq; pop %rsp; ret $128
 *
 * kernel/README.md has the complete entry code.
 *
 * The frame lies 128 bytes (the red zone) or a little more below the interrupted rsp.
 * Faults in the handler nest: each has its frame below the one that it interrupted. A
 * thread whose stack may be guarded, or too small, registers an *exception stack* with
 * ULPF_STACK. Then the frame lies at its upper end. If rsp was on it already, the frame
 * lies below rsp and its red zone. A handler that leaves the exception stack without returning
 * leaves it free again.
 *
 * The frame may be impossible to write: its memory is not mapped, not writable or
 * guarded, or less than ULPF_STACK_MIN bytes are left on the exception stack. Then the
 * thread gets SIGSEGV, as it does without room for a signal frame, and there is an
 * event ULPF_EVENT_UNDELIVERED. Signals and handlers mix freely: an upcall is
 * interrupted by signals like any other code. Without a handler a forbidden access is
 * SIGSEGV (the event is ULPF_EVENT_UNHANDLED), so a program may use signals instead.
 *
 * With ULPF_HANDLER_SIGSTACK (a machine with ULPF_FEATURE_SIGSTACK) the frame lies
 * where a signal frame with SA_ONSTACK would. That is the thread's alternate signal
 * stack (sigaltstack(2)), which needs no registration, or the current position on it. A
 * thread without one gets SIGSEGV instead of an upcall.
 *
 * ULPF_HANDLER_ONCE asks for the thesis's write-once rule (section 3.2.3): a handler
 * that just returns has permitted the access this one time. Machines without
 * ULPF_FEATURE_ONCE answer EOPNOTSUPP. The Linux module is one of them, since the
 * return is an ordinary instruction that it does not see. A second access by the same
 * instruction may follow the return. It may also be a loop's next turn after the
 * handler was left by longjmp(), which must not pass unseen. On such machines, make the
 * access through the alias, or open the page and step over the instruction with the
 * trap flag.
 *
 * Not in this version: restartable sequences are not restarted by an upcall, threads
 * with a user shadow stack cannot return with iretq, 32-bit processes get ENOTTY.
 *
 * The kernel's accesses
 * =====================
 *
 * System calls read and write guarded memory as any other memory: no EFAULT, no short
 * count. An access that the permissions forbid is an event, ULPF_EVENT_KERNEL_READ or
 * _WRITE, with the call's number and the program's ip. There is one for each page and
 * call; `addr` is the first byte that the kernel touched there. Accesses by other
 * processes (ptrace, process_vm_writev, /proc/PID/mem) are events, too, and so are those
 * of the kernel's own threads (for a device, for io_uring). These have the tid of the
 * accessing thread, and no registers.
 *
 * On the Linux module such a page is open from the access until the call returns. It is
 * closed earlier if the call sleeps for longer than a clock tick or two, takes longer
 * than a second, or has opened a hundred others. A later access by the call to the page
 * is an event again. Accesses by other threads to the open page are not seen; the event
 * has ULPF_INFO_OPEN if there are other threads. Memory that a device or io_uring has
 * pinned is seen when it is pinned, not when it is written.
 *
 * With ULPF_POLICY_EFAULT (ULPF_FEATURE_EFAULT) these accesses fail, as they do after
 * mprotect(): a forbidden access ends with EFAULT or a short count, for other
 * processes, too, and makes no event. Only a core dump still holds everything.
 *
 * Guard ranges
 * ============
 *
 * ULPF_OP_GUARD marks pages that must not be touched (Kefence's guardian pages),
 * between buffers or behind them. The mark overrides the permissions, and no handler is
 * entered:
 *
 *   ULPF_GUARD_LOG   the first access to each page is an event ULPF_EVENT_GUARD; the
 *                    page is open from then on, and the program goes on
 *   ULPF_GUARD_STOP  each access is an event and SIGSEGV; in a system call, EFAULT
 *   ULPF_GUARD_OFF   the mark is taken away
 *
 * Events
 * ======
 *
 * ULPF_RING makes the ring, once. Writers never wait: the ring always holds the last
 * events, and a slow reader gets the exact number of events that it has lost.
 *
 *   In memory (mmap): ulpf_ring_header, and at data_offset the slots. `head` counts
 *   events that were begun. The event with number p lies in slot p % records, and is
 *   complete when its `stamp` is p + 1: read stamp (acquire), the rest, and stamp
 *   again. A larger stamp means that it is lost; 0 that it is being written.
 *
 *   By read(): whole struct ulpf_event; EINVAL if not even one fits. All readers by
 *   read() share one position. read() blocks until `watermark` events wait, or the
 *   first of them has waited `latency_us`; with O_NONBLOCK it returns the waiting
 *   events, or EAGAIN. If events were lost, the first one given is ULPF_EVENT_LOST with
 *   their number in `addr`. It returns 0, the end, when the space's mm has ended (exit,
 *   exec) and all events have been read. ENXIO before the ring exists.
 *
 *   poll() says POLLIN when read() would not block, and POLLHUP at the end.
 *
 * Calls
 * =====
 *
 * Each structure but ulpf_op begins with its size as the caller knows it. A structure
 * that is shorter than the machine's is extended with zeros. A longer one is accepted
 * if the excess bytes are zero (E2BIG else). Sizes below the first version's are
 * EINVAL. All `flags` and reserved fields must be zero unless documented otherwise
 * (EINVAL). Bad pointers are EFAULT, unknown calls ENOTTY. Any thread may make calls at
 * any time, also in a handler.
 *
 * ULPF_STORE (ULPF_FEATURE_STORE) returns a close-on-exec descriptor of the store
 * itself. It is a file like memfd_create()'s, for pread(), pwrite(), fallocate(),
 * lseek(SEEK_DATA) and plain mappings (which are aliases). It cannot be executed as a
 * program. It remains usable after the space has ended.
 *
 * fork: the child inherits the mappings as unguarded shared memory. Its accesses are
 * not seen, its stores change the parent's memory, and it has no handler. After
 * madvise(MADV_DONTFORK) it does not inherit them. It never inherits PLI pages. vfork
 * and clone(CLONE_VM) share the mm, and so the guard. exec ends mappings and handler.
 * The rest of a space is freed with the last of its mappings and descriptors.
 */
#ifndef _UAPI_ULPF_H
#define _UAPI_ULPF_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define ULPF_DEVICE	"/dev/ulpf"
#define ULPF_VERSION	1

/* mmap offsets; see "Mapping". */
#define ULPF_MAP_GUARD	0x0000000000000000ULL
#define ULPF_MAP_ALIAS	0x1000000000000000ULL
#define ULPF_MAP_PLI	0x2000000000000000ULL
#define ULPF_MAP_RING	0x3000000000000000ULL
#define ULPF_STORE_SIZE	0x0000800000000000ULL

/* PLI: one page is 32 regions of 128 bytes, each for 512 pages. */
#define ULPF_PLI_PAGES		65536
#define ULPF_PLI_REGIONS	32
#define ULPF_REGION_SIZE	128
#define ULPF_REGION_SHIFT	21

/* Permissions of a page. */
#define ULPF_RW		0
#define ULPF_RO		1
#define ULPF_EXE	2
#define ULPF_NONE	3

/**
 * struct ulpf_frame - frame at the handler's stack pointer
 * @addr: First forbidden byte of the access
 * @info: ULPF_INFO_*
 * @cookie: From struct ulpf_handler
 * @ip: The instruction that made the access, not executed yet
 * @cs: Code segment
 * @flags: The processor's flags
 * @sp: The program's stack pointer
 * @ss: Stack segment
 */
struct ulpf_frame {
	__u64 addr;
	__u64 info;
	__u64 cookie;
	__u64 ip;
	__u64 cs;
	__u64 flags;
	__u64 sp;
	__u64 ss;
};

#define ULPF_INFO_WRITE		(1 << 0)	/* a store, or a read-modify-write */
#define ULPF_INFO_FETCH		(1 << 1)	/* an instruction fetch */
#define ULPF_INFO_STACK		(1 << 2)	/* the frame is on the exception stack */
#define ULPF_INFO_OPEN		(1 << 3)	/* events: other threads can reach the page meanwhile, unseen */
#define ULPF_INFO_PERM_SHIFT	8		/* two bits: the permission that forbade it */

#define ULPF_RED_ZONE	128
/* The least size of an exception stack, and what must be left of it for one more upcall. */
#define ULPF_STACK_MIN	1024

/**
 * struct ulpf_query - capabilities of this machine (ULPF_QUERY)
 * @size: Size of this structure
 * @flags: Zero
 * @version: In: the version that the caller was written for; out: the machine's
 * @machine: Out: ULPF_MACHINE_*
 * @features: Out: ULPF_FEATURE_*
 * @batch_max: Out: Operations that one ULPF_BATCH may have
 * @ring_max: Out: Events that a ring may hold
 *
 * EPROTONOSUPPORT, with @version filled in, if the machine does not implement the
 * caller's version. The query is optional.
 */
struct ulpf_query {
	__u32 size;
	__u32 flags;
	__u32 version;
	__u32 machine;
	__u64 features;
	__u32 batch_max;
	__u32 ring_max;
};

#define ULPF_MACHINE_LINUX	1
#define ULPF_MACHINE_UNICORN	2
#define ULPF_MACHINE_GEM5	3

#define ULPF_FEATURE_READ	(1 << 0)	/* loads can be forbidden (ULPF_NONE) */
#define ULPF_FEATURE_EXE	(1 << 1)	/* ULPF_EXE permits fetches only */
#define ULPF_FEATURE_PLI_LOOSEN	(1 << 2)	/* a store to a region opens at once */
#define ULPF_FEATURE_PLI_TIGHTEN (1 << 3)	/* ... and closes at once, without SYNC */
#define ULPF_FEATURE_ONCE	(1 << 4)	/* ULPF_HANDLER_ONCE */
#define ULPF_FEATURE_STACK	(1 << 5)	/* ULPF_STACK */
#define ULPF_FEATURE_KERNEL	(1 << 6)	/* the kernel's accesses are events */
#define ULPF_FEATURE_GUARD	(1 << 7)	/* ULPF_OP_GUARD */
#define ULPF_FEATURE_STORE	(1 << 8)	/* ULPF_STORE */
#define ULPF_FEATURE_SIGSTACK	(1 << 9)	/* ULPF_HANDLER_SIGSTACK */
#define ULPF_FEATURE_EFAULT	(1 << 10)	/* ULPF_POLICY_EFAULT */

/**
 * struct ulpf_handler - registers the handler (ULPF_HANDLER)
 * @size: Size of this structure
 * @flags: ULPF_HANDLER_*
 * @entry: Its address; zero removes the registered handler
 * @cookie: Given to the handler with each frame
 *
 * EBUSY if one is registered and ULPF_HANDLER_REPLACE is not set; ENOENT if there is no
 * handler to remove; EFAULT if @entry is not mapped, or no user address; EACCES if the
 * memory there is not executable; EOPNOTSUPP for a flag without its feature.
 */
struct ulpf_handler {
	__u32 size;
	__u32 flags;
	__u64 entry;
	__u64 cookie;
};

#define ULPF_HANDLER_REPLACE	(1 << 0)
#define ULPF_HANDLER_ONCE	(1 << 1)	/* needs ULPF_FEATURE_ONCE */
#define ULPF_HANDLER_SIGSTACK	(1 << 2)	/* needs ULPF_FEATURE_SIGSTACK */

/**
 * struct ulpf_policy - settings of the whole space (ULPF_POLICY)
 * @size: Size of this structure
 * @flags: ULPF_POLICY_*; a policy without its flag is off
 *
 * EINVAL for an unknown flag.
 */
struct ulpf_policy {
	__u32 size;
	__u32 flags;
};

#define ULPF_POLICY_EFAULT	(1 << 0)	/* the kernel's accesses fail; needs ULPF_FEATURE_EFAULT */

/**
 * struct ulpf_stack - the calling thread's exception stack (ULPF_STACK)
 * @size: Size of this structure
 * @flags: Zero
 * @base: Lowest address, a multiple of 16
 * @length: In bytes, a multiple of 16, at least ULPF_STACK_MIN; zero: remove it
 *	(ENOENT if no stack is registered)
 *
 * Replaces an earlier one. It stays registered until the thread ends; new threads do
 * not inherit it. EFAULT if the range is not user memory, EINVAL if it is misaligned or
 * too small, ENOMEM.
 */
struct ulpf_stack {
	__u32 size;
	__u32 flags;
	__u64 base;
	__u64 length;
};

/**
 * struct ulpf_op - one change (ULPF_APPLY, and many of them for ULPF_BATCH)
 * @op: ULPF_OP_*
 * @flags: Zero
 * @addr: First address
 * @length: In bytes
 * @arg: See below
 *
 *     ULPF_OP_SET	@arg (ULPF_RW ...) for [@addr, @addr + @length)
 *     ULPF_OP_SYNC	permissions in PLI regions hold for the range from now on
 *     ULPF_OP_GUARD	@arg (ULPF_GUARD_*) for the range
 *	EINVAL: not whole pages, empty, wrapping, unknown @arg; ENOMEM: the range is
 *	not all guarded mapping of this descriptor, or memory for its regions is not to
 *	be had; EINTR: a fatal signal; EOPNOTSUPP: ULPF_EXE. The range changes as a
 *	whole: nothing is changed if there is an error.
 *     ULPF_OP_BIND	the region at address @arg governs the 2 MiB from @addr on
 *	(@length is 2 MiB). EINVAL: @addr, @arg or @length misaligned, or region 0 of
 *	its page; EFAULT: @arg is not in a PLI mapping of this descriptor, or @addr no
 *	user address; EBUSY: the prefix has another region, or the region another
 *	prefix. Permissions of the prefix from ULPF_OP_SET are discarded. Binding
 *	the same once more is no error.
 *     ULPF_OP_UNBIND	the 2 MiB from @addr on are ULPF_RW, and the region is free.
 *	@arg is zero. ENOENT: it has no region.
 *
 * Also ENOMEM when memory for a region is not to be had, and EINVAL for an unknown
 * @op. Regions stay until the space ends. On the Linux module the first 64 of a space
 * (128 MiB of address space) are free, and eight more are a page that is charged as
 * that of a ring is.
 */
struct ulpf_op {
	__u32 op;
	__u32 flags;
	__u64 addr;
	__u64 length;
	__u64 arg;
};

#define ULPF_OP_SET	1
#define ULPF_OP_SYNC	2
#define ULPF_OP_GUARD	3
#define ULPF_OP_BIND	4
#define ULPF_OP_UNBIND	5

#define ULPF_GUARD_OFF	0
#define ULPF_GUARD_LOG	1
#define ULPF_GUARD_STOP	2

/**
 * struct ulpf_batch - many changes in one crossing (ULPF_BATCH)
 * @size: Size of this structure
 * @flags: Zero
 * @ops: Address of an array of struct ulpf_op
 * @count: Length of the array; at most batch_max (E2BIG)
 * @op_size: Size of struct ulpf_op, the distance between them; EINVAL if another
 * @done: Out: Number of operations carried out, which is the index of the failed one
 *
 * Operations are carried out in order until the first failure, whose error is returned.
 * The operations before it stay in effect; the failed one changes nothing. When the
 * call returns, the changes hold for all threads; before that, other threads may see
 * them in any order. A fatal signal ends the call (EINTR).
 */
struct ulpf_batch {
	__u32 size;
	__u32 flags;
	__u64 ops;
	__u32 count;
	__u32 op_size;
	__u32 done;
	__u32 reserved;
};

/**
 * struct ulpf_ring - makes the event ring (ULPF_RING)
 * @size: Size of this structure
 * @flags: Zero
 * @records: Events that it holds; a power of two from 64 to ring_max
 * @watermark: Events that wait before a blocking reader is woken; 1 to @records / 2
 * @latency_us: Longest wait of the first of them; up to 10^7, zero: until
 *	@watermark is reached
 * @reserved: Zero
 *
 * EBUSY if there is one already. It is charged to RLIMIT_MEMLOCK (ENOMEM), as PLI pages
 * are, and to the memory cgroup. The limit is for all processes of the opener's user;
 * the charge stays until the space ends.
 */
struct ulpf_ring {
	__u32 size;
	__u32 flags;
	__u32 records;
	__u32 watermark;
	__u32 latency_us;
	__u32 reserved;
};

/**
 * struct ulpf_ring_header - the first page of the mapped ring
 * @version: ULPF_VERSION
 * @records: Slots
 * @data_offset: Offset of the first slot
 * @length: Mappable bytes
 * @head: Events begun since the ring was made
 * @dropped: Events without a number, for which no slot was free (a writer of the round
 *	before still held it)
 */
struct ulpf_ring_header {
	__u32 version;
	__u32 records;
	__u32 data_offset;
	__u32 length;
	__u64 head;
	__u64 dropped;
};

/**
 * struct ulpf_event - one event, a cache line
 * @stamp: Its number plus one, written last
 * @time: CLOCK_MONOTONIC where the device was opened, nanoseconds
 * @addr: First byte touched (ULPF_EVENT_LOST: number of lost events)
 * @ip: The program's next instruction: behind the `syscall` for the kernel's accesses,
 *	the instruction itself for others; zero if the access was not the program's
 * @sp: The program's stack pointer, or zero
 * @pid: Process that made the access, in the pid namespace of the device's opener;
 *	zero if it has no number there
 * @tid: Thread that made the access, likewise
 * @type: ULPF_EVENT_*
 * @info: ULPF_INFO_*, low 16 bits
 * @syscall: Its number; -1 if the access was no system call of the program's
 * @reserved: Zero
 */
struct ulpf_event {
	__u64 stamp;
	__u64 time;
	__u64 addr;
	__u64 ip;
	__u64 sp;
	__u32 pid;
	__u32 tid;
	__u16 type;
	__u16 info;
	__s32 syscall;
	__u64 reserved;
};

#define ULPF_EVENT_LOST		1
#define ULPF_EVENT_KERNEL_READ	2
#define ULPF_EVENT_KERNEL_WRITE	3
#define ULPF_EVENT_GUARD	4
#define ULPF_EVENT_UNHANDLED	5
#define ULPF_EVENT_UNDELIVERED	6

/**
 * struct ulpf_page - state of a page (ULPF_LOOKUP)
 * @size: Size of this structure
 * @flags: Zero
 * @addr: Any address in it; EFAULT if no user address
 * @permission: Out: ULPF_RW ...
 * @guard: Out: ULPF_GUARD_*
 * @state: Out: ULPF_PAGE_*
 * @reserved: Zero
 */
struct ulpf_page {
	__u32 size;
	__u32 flags;
	__u64 addr;
	__u32 permission;
	__u32 guard;
	__u32 state;
	__u32 reserved;
};

#define ULPF_PAGE_GUARDED	(1 << 0)	/* a guarded mapping of this descriptor is here */
#define ULPF_PAGE_BOUND		(1 << 1)	/* a PLI region governs it */

/**
 * struct ulpf_counts - counters of a space (ULPF_COUNTS)
 * @size: Size of this structure
 * @flags: Zero
 * @upcalls: Entries of the handler
 * @kernel_reads: Events of the kernel's loads
 * @kernel_writes: ... and stores
 * @guards: Accesses to guard ranges
 * @unhandled: Forbidden accesses without a handler
 * @undelivered: Upcalls without room for a frame
 * @changes: Operations carried out
 * @flushes: TLB flushes for them
 */
struct ulpf_counts {
	__u32 size;
	__u32 flags;
	__u64 upcalls;
	__u64 kernel_reads;
	__u64 kernel_writes;
	__u64 guards;
	__u64 unhandled;
	__u64 undelivered;
	__u64 changes;
	__u64 flushes;
};

/*
 * The numbers keep away from 0 to 2 and from the type of the terminals' ioctls,
 * which kernels answer by themselves. The size in the number is that of version 1;
 * the size in the structure is what counts.
 */
#define ULPF_IOC_TYPE	0xDE
#define ULPF_QUERY	_IOWR(ULPF_IOC_TYPE, 0x20, struct ulpf_query)
#define ULPF_HANDLER	_IOW(ULPF_IOC_TYPE, 0x21, struct ulpf_handler)
#define ULPF_STACK	_IOW(ULPF_IOC_TYPE, 0x22, struct ulpf_stack)
#define ULPF_APPLY	_IOW(ULPF_IOC_TYPE, 0x23, struct ulpf_op)
#define ULPF_BATCH	_IOWR(ULPF_IOC_TYPE, 0x24, struct ulpf_batch)
#define ULPF_RING	_IOW(ULPF_IOC_TYPE, 0x25, struct ulpf_ring)
#define ULPF_LOOKUP	_IOWR(ULPF_IOC_TYPE, 0x26, struct ulpf_page)
#define ULPF_COUNTS	_IOWR(ULPF_IOC_TYPE, 0x27, struct ulpf_counts)
#define ULPF_POLICY	_IOW(ULPF_IOC_TYPE, 0x28, struct ulpf_policy)
#define ULPF_STORE	_IO(ULPF_IOC_TYPE, 0x29)

#endif /* _UAPI_ULPF_H */
