/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note OR MIT */
/*
 * The device interface of ulpf: user-level page faults.
 *
 * One interface, several machines: the Linux module (kernel/), and simulators of
 * the hardware that the thesis proposes. What a machine cannot do, its feature
 * bits do not claim.
 *
 * Overview
 * ========
 *
 * open("/dev/ulpf", O_RDWR | O_CLOEXEC) makes a *guarded address space* and binds
 * it to the memory (the mm) of the process that opens. It has
 *
 *   - a store: sparse memory of ULPF_STORE_SIZE bytes, all zero, swappable, charged
 *     to whoever touches it first. It is mapped as often as one likes, in two ways:
 *     guarded, and as an alias, which nothing guards. So a handler reaches through
 *     the alias what the guarded mapping forbids, and no other thread ever finds
 *     the guarded page open;
 *   - permissions, two bits for each page of *address space* (not of the store),
 *     that apply where a guarded mapping of this descriptor is;
 *   - a handler: user code that the machine enters, on the thread itself and without
 *     a signal, when an access is forbidden by these permissions;
 *   - a ring of events: what could not be given to a handler because no instruction
 *     of the program did it (the kernel's own accesses), and guard ranges.
 *
 * A process may open the device several times; the spaces know nothing of each
 * other. Only the process that opened may change its space: all ioctls but
 * ULPF_QUERY and ULPF_COUNTS, and mmap() of everything but the ring, fail with
 * EPERM from any other memory (a forked child, the program after exec, whoever was
 * sent the descriptor). read(), poll() and mmap() of the ring are open to all who
 * hold the descriptor, so that a monitor can be another process.
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
 * MAP_PRIVATE is EINVAL, so are a range beyond the store and a ring mapped
 * writable; mapping the ring before it exists is ENXIO. What the program's own
 * mprotect() forbids stays the program's: it gets its SIGSEGV, and no upcall.
 * madvise(MADV_REMOVE) gives memory of the store back, where it reads as zero
 * then. Transparent huge pages are not used.
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
 * write instruction is a store. The Linux module has no ULPF_FEATURE_EXE: a page that x86
 * page tables let a thread execute they let it read, too, and an execute-only page by
 * protection key is a SIGSEGV before any driver is asked.
 *
 * Where they live: the page with address A has the bits 2*k and 2*k+1 of the 128
 * bytes (a *region*) of its 2 MiB prefix A >> 21, k being (A >> 12) & 511. A region
 * is either the machine's own (made when needed, changed with ULPF_OP_SET), or the
 * user's:
 *
 *   PLI pages ("page level indicators", thesis section 3.3.2) are mapped from the
 *   device and hold 32 regions each. Region 0 is the library's, for free_regions,
 *   prev and next; the machine never looks at it. ULPF_OP_BIND says that a region
 *   governs a prefix (the thesis's sys_set_ro()). From then on a plain store to the
 *   region is a change of permissions, without a system call:
 *
 *     - With ULPF_FEATURE_PLI_LOOSEN a store that permits more is honoured at the
 *       next fault, so at once as far as the program can tell. (Linux module,
 *       simulators)
 *     - With ULPF_FEATURE_PLI_TIGHTEN a store that permits less is honoured at the
 *       next access. (Simulators.) Without it, it is honoured at the latest after
 *       ULPF_OP_SYNC for the page, which is what SET_TLB_RO was in the thesis:
 *       until then the processor may know the page as open.
 *
 *   ULPF_OP_SET works on bound prefixes, too: it writes the region, and syncs. It
 *   changes bytes with single locked instructions; a store of the user's to the same
 *   byte at the same time should be one, too.
 *
 *   The value ULPF_EXE in a region, where the machine does not know it, is ULPF_NONE.
 *
 * The upcall
 * ==========
 *
 * ULPF_HANDLER registers the address of the handler. When an instruction of the
 * program makes an access that the permissions forbid, nothing of the access has
 * happened, and the thread continues at the handler with all its registers as they
 * were, except rip, rsp, and the flags DF, TF, RF, AC and NT, which are clear. At
 * (%rsp), aligned to 16, lies
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
 * and so `add $24, %rsp; iretq` is ULIRET: it continues the program, by default with
 * the same instruction once more (which faults again, if the handler has not
 * permitted it). A handler that has made the access itself, through the alias,
 * adds the instruction's length to `ip`; it may change every word of the frame. The
 * machine keeps nothing about a handler that runs: leaving it by longjmp, or a
 * thread's end in it, need no call.
 *
 * There is a cheaper way back than iretq (and QEMU before 9.1 faults at an iretq in
 * user mode): with cs and ss as usual, put `ip` on the program's stack, just below the
 * red zone, lower the frame's `sp` to it, and after the registers
 *
 *       add $40, %rsp; popfq; pop %rsp; ret $128
 *
 * kernel/README.md has the whole of it.
 *
 * The frame lies 128 bytes (the red zone) or a little more below the interrupted
 * rsp. Faults in the handler nest: each has its frame below the one that it
 * interrupted. Threads whose stacks may be guarded, or too small, name an
 * *exception stack* with ULPF_STACK: then the frame lies at its upper end, or, if
 * rsp was on it already, below rsp and its red zone. A handler that leaves the
 * exception stack without returning leaves it free again.
 *
 * If the frame cannot be written (no memory there, not writable, guarded, less than
 * ULPF_STACK_MIN bytes left on the exception stack) the thread gets SIGSEGV, as it
 * does when there is no room for a signal frame, and an event ULPF_EVENT_UNDELIVERED
 * says so. Signals and handlers mix freely: an upcall is interrupted by signals like
 * any other code. Without a handler a forbidden access is SIGSEGV (the event is
 * ULPF_EVENT_UNHANDLED), so a program may use signals instead.
 *
 * With ULPF_HANDLER_SIGSTACK (a machine with ULPF_FEATURE_SIGSTACK) the frame lies where a
 * signal frame with SA_ONSTACK would: on the thread's alternate signal stack
 * (sigaltstack(2)), of which no machine needs to be told, or on the stack in use if that is
 * the one. A thread that has none gets no upcall, but its SIGSEGV.
 *
 * ULPF_HANDLER_ONCE asks for the thesis's write-once rule (section 3.2.3): a handler
 * that just returns has permitted the access this one time. Machines without
 * ULPF_FEATURE_ONCE answer EOPNOTSUPP. The Linux module is one of them, since the return
 * is an ordinary instruction that it does not see: the same access by the same instruction
 * a second time may be the return, or a loop's next turn after the handler was left by
 * longjmp(), and to let that pass would be to miss it. There make the access through the
 * alias, or open the page and step over the instruction with the trap flag.
 *
 * Not in this version: restartable sequences are not restarted by an upcall, threads
 * with a user shadow stack cannot return with iretq, 32-bit processes get ENOTTY.
 *
 * The kernel's accesses
 * =====================
 *
 * System calls read and write guarded memory as any other memory: no EFAULT, no
 * short count. What the permissions would have forbidden is an event,
 * ULPF_EVENT_KERNEL_READ or _WRITE, with the call's number and the program's ip: one
 * for each page and call, `addr` being the first byte that the kernel touched there.
 * Other processes' accesses (ptrace, process_vm_writev, /proc/PID/mem), and those of
 * the kernel's own threads (for a device, for io_uring), are events, too, with the tid
 * of who made them, and without registers. On the Linux module such a page is open from
 * the access until the call returns, or sleeps for longer than a clock tick or two, or takes longer
 * than a second, or has opened a hundred others: if it then comes back to the page, that is an event again. What
 * other threads do there meanwhile is not seen; the event has ULPF_INFO_OPEN if there are
 * any. Memory that a device or io_uring has pinned is seen when it is pinned, not when
 * it is written.
 *
 * Who would rather have them fail, as mprotect() does, says so with
 * ULPF_POLICY_EFAULT (ULPF_FEATURE_EFAULT): whatever the permissions forbid ends with EFAULT or a
 * short count then, for other processes, too, and is no event. Only a core dump still holds
 * everything.
 *
 * Guard ranges
 * ============
 *
 * ULPF_OP_GUARD marks pages that nobody should touch (Kefence's guardian pages):
 * between buffers, or behind them. It is stronger than the permissions, and asks no
 * handler:
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
 * events, and a reader that was too slow is told exactly how many it has lost.
 *
 *   In memory (mmap): ulpf_ring_header, and at data_offset the slots. `head` events
 *   have been begun. The event with number p lies in slot p % records, and is
 *   complete when its `stamp` is p + 1: read stamp (acquire), the rest, and stamp
 *   again. A larger stamp means that it is lost; 0 that it is being written.
 *
 *   By read(): whole struct ulpf_event; EINVAL if not even one fits. All readers by
 *   read() share one position. It blocks until `watermark` events wait, or the first
 *   of them has waited `latency_us`; with O_NONBLOCK it gives what there is, or
 *   EAGAIN. If events were lost, the first one given is ULPF_EVENT_LOST with their
 *   number in `addr`. It is 0, the end, when the memory of the space is gone
 *   (exit, exec) and all has been read. ENXIO before the ring exists.
 *
 *   poll() says POLLIN when read() would not block, and POLLHUP at the end.
 *
 * Calls
 * =====
 *
 * Each structure but ulpf_op begins with its size as the caller knows it. A shorter one than the
 * machine's is read as if the rest were zero, and a longer one is accepted if what
 * the machine does not know is zero (E2BIG else). Sizes below the first version's
 * are EINVAL. All `flags` and reserved fields must be zero where nothing else is
 * said (EINVAL). Bad pointers are EFAULT, unknown calls ENOTTY. Calls are made at any
 * time by any thread, also in a handler.
 *
 * ULPF_STORE (ULPF_FEATURE_STORE) gives a descriptor of the store itself, close-on-exec: a file
 * as memfd_create() makes them, for pread(), pwrite(), fallocate(), lseek(SEEK_DATA) and plain
 * mappings (which are aliases). Nobody can execute it as a program. What can be done with it does
 * not end with the space.
 *
 * fork: the child inherits the mappings as shared memory that nothing guards for it:
 * what it does there is not seen, its stores change the parent's memory, and it has
 * no handler. madvise(MADV_DONTFORK) keeps them from it. PLI pages it does not inherit. vfork and clone(CLONE_VM)
 * share the memory, and so the guard. exec: all is gone. Whatever is left of a space
 * goes with the last of its mappings and descriptors.
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
 * struct ulpf_frame - what the handler finds at its stack pointer
 * @addr: first byte of the access that is forbidden
 * @info: ULPF_INFO_*
 * @cookie: from struct ulpf_handler
 * @ip: the instruction that made the access, not executed yet
 * @cs: code segment
 * @flags: the processor's flags
 * @sp: the program's stack pointer
 * @ss: stack segment
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
 * struct ulpf_query - what this machine can do (ULPF_QUERY)
 * @size: of this structure
 * @flags: zero
 * @version: in: the version that the caller was written for; out: the machine's
 * @machine: out: ULPF_MACHINE_*
 * @features: out: ULPF_FEATURE_*
 * @batch_max: out: operations that one ULPF_BATCH may have
 * @ring_max: out: events that a ring may hold
 *
 * EPROTONOSUPPORT, with @version filled in, if the machine does not speak the
 * caller's version. Nobody is forced to ask.
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
 * @size: of this structure
 * @flags: ULPF_HANDLER_*
 * @entry: its address; zero takes the registered one away
 * @cookie: given to the handler with each frame
 *
 * EBUSY if one is registered and ULPF_HANDLER_REPLACE is not set; ENOENT if there is
 * none to take away; EFAULT if @entry is not mapped, or no user address; EACCES if
 * the memory there is not executable; EOPNOTSUPP for a flag without its feature.
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
 * struct ulpf_policy - what holds for the whole space (ULPF_POLICY)
 * @size: of this structure
 * @flags: ULPF_POLICY_*; those that are not named do not hold (any more)
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
 * @size: of this structure
 * @flags: zero
 * @base: lowest address, a multiple of 16
 * @length: in bytes, a multiple of 16, at least ULPF_STACK_MIN; zero: none (ENOENT if
 *	there is none)
 *
 * Takes the place of an earlier one. It is the thread's until it ends; threads do not
 * inherit it. EFAULT if the range is not user memory, EINVAL if it is misaligned or
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
 * @flags: zero
 * @addr: first address
 * @length: in bytes
 * @arg: see below
 *
 *   ULPF_OP_SET	@arg (ULPF_RW ...) for [@addr, @addr + @length)
 *   ULPF_OP_SYNC	what PLI regions say about the range holds from now on
 *   ULPF_OP_GUARD	@arg (ULPF_GUARD_*) for the range
 *	EINVAL: not whole pages, empty, wrapping, unknown @arg; ENOMEM: the range is
 *	not all guarded mapping of this descriptor, or memory for its regions is not to
 *	be had; EINTR: a fatal signal; EOPNOTSUPP: ULPF_EXE. The range changes as a
 *	whole: nothing is changed if there is an error.
 *   ULPF_OP_BIND	the region at address @arg governs the 2 MiB from @addr on
 *	(@length is 2 MiB). EINVAL: @addr, @arg or @length misaligned, or region 0 of
 *	its page; EFAULT: @arg is not in a PLI mapping of this descriptor, or @addr no
 *	user address; EBUSY: the prefix has another region, or the region another
 *	prefix. What ULPF_OP_SET had said about the prefix is forgotten. Binding the
 *	same once more is no error.
 *   ULPF_OP_UNBIND	the 2 MiB from @addr on are ULPF_RW, and the region is free.
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
 * @size: of this structure
 * @flags: zero
 * @ops: address of an array of struct ulpf_op
 * @count: how many; at most batch_max (E2BIG)
 * @op_size: sizeof(struct ulpf_op), the distance between them; EINVAL if another
 * @done: out: how many were carried out; so the index of the one that failed
 *
 * They are carried out in order, and end at the first failure, with its error. What
 * came before it stays, and of the one that fails nothing has happened. When the call
 * returns all of that holds for all threads; in which order others see it before is
 * not said. A fatal signal ends it (EINTR).
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
 * @size: of this structure
 * @flags: zero
 * @records: events that it holds; a power of two from 64 to ring_max
 * @watermark: events that wait before a blocking reader is woken; 1 to @records / 2
 * @latency_us: how long the first of them waits at most; up to 10^7, zero: until
 *	@watermark is reached
 * @reserved: zero
 *
 * EBUSY if there is one already. It is charged to RLIMIT_MEMLOCK (ENOMEM), as PLI
 * pages are, and to the memory cgroup. The limit is for all processes of the user who
 * has opened the device, and holds until the space ends.
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
 * @records: slots
 * @data_offset: where they begin
 * @length: what can be mapped, in bytes
 * @head: events begun since the ring was made
 * @dropped: events for which not even a slot was free (a writer of a whole round ago
 *	still held it); they have no number
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
 * @stamp: its number plus one, written last
 * @time: CLOCK_MONOTONIC where the device was opened, nanoseconds
 * @addr: first byte touched (ULPF_EVENT_LOST: how many are lost)
 * @ip: the program's next instruction: behind the `syscall` for the kernel's accesses,
 *	the instruction itself for others; zero if the access was not the program's
 * @sp: the program's stack pointer, or zero
 * @pid: process that made the access, in the pid namespace of who has opened the
 *	device; zero if it has no number there
 * @tid: thread that made the access, likewise
 * @type: ULPF_EVENT_*
 * @info: ULPF_INFO_*, low 16 bits
 * @syscall: its number; -1 if the access was no system call of the program's
 * @reserved: zero
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
 * struct ulpf_page - what the machine knows of a page (ULPF_LOOKUP)
 * @size: of this structure
 * @flags: zero
 * @addr: any address in it; EFAULT if no user address
 * @permission: out: ULPF_RW ...
 * @guard: out: ULPF_GUARD_*
 * @state: out: ULPF_PAGE_*
 * @reserved: zero
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
 * struct ulpf_counts - how often what has happened (ULPF_COUNTS)
 * @size: of this structure
 * @flags: zero
 * @upcalls: entries of the handler
 * @kernel_reads: events of the kernel's loads
 * @kernel_writes: ... and stores
 * @guards: accesses to guard ranges
 * @unhandled: forbidden accesses without a handler
 * @undelivered: upcalls without room for a frame
 * @changes: operations carried out
 * @flushes: how often the processors had to forget mappings for them
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
