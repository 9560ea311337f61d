/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Internals of the module: the guarded address space, and its locking rules.
 *
 * A space lives as long as its device file. Guarded mappings have another vm_file
 * (the store), so each of them holds a reference to the device file; the VFS then
 * keeps the module loaded, too.
 *
 * State that decides faults (handler, regions, guards) changes only under the mmap lock held for writing and,
 * since Linux 6.4, the mapping's own lock. Faults hold one of these for reading from the decision until the
 * page table is updated. Hence no fault can install a page that has just been forbidden. There are two
 * exceptions: user space stores into PLI regions, as the interface describes, and an access clears guard bits
 * atomically.
 */
#ifndef _ULPF_INTERNAL_H
#define _ULPF_INTERNAL_H

#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/percpu.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/types.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

#include <ulpf.h>

#include "compat.h"

#define ULPF_REGION_PAGES	512
#define ULPF_REGION_BYTES	(1UL << ULPF_REGION_SHIFT)
#define ULPF_BATCH_MAX		(1 << 20)
#define ULPF_RING_MAX		65536

struct ulpf_ring_buffer;

/**
 * struct ulpf_region - the permissions of 512 pages, two bits each
 * @prefix: Address >> 21
 * @bits: @own, or 128 bytes of a PLI page, which user space may store to
 * @pli: Index of the PLI page, if it is bound
 * @slot: Number of the region in it; zero if it is not bound
 * @log: Pages whose first access is to be logged; @log and @stop are there if @guarded
 * @stop: Pages where every access is stopped
 */
struct ulpf_region {
	unsigned long prefix;
	u8 *bits;
	unsigned int pli;
	unsigned int slot;
	bool guarded;
	u8 own[ULPF_REGION_SIZE];
	DECLARE_BITMAP(log, ULPF_REGION_PAGES);
	DECLARE_BITMAP(stop, ULPF_REGION_PAGES);
};

/**
 * struct ulpf_pli_page - a page of regions, shared with user space
 * @page: The memory
 * @used: Bit n: region n governs a prefix
 */
struct ulpf_pli_page {
	struct page *page;
	u32 used;
};

/**
 * struct ulpf_thread - a thread's exception stack
 * @pid: Its owner; keeps the number from being given to another
 * @base: Lowest address, if @length is not zero
 * @length: Its size
 *
 * Only the thread itself uses it.
 */
struct ulpf_thread {
	struct pid *pid;
	struct rcu_head rcu;
	unsigned long base;
	unsigned long length;
};

/* The fields of struct ulpf_counts, in their order. */
enum ulpf_counter {
	ULPF_COUNT_UPCALLS,
	ULPF_COUNT_KERNEL_READS,
	ULPF_COUNT_KERNEL_WRITES,
	ULPF_COUNT_GUARDS,
	ULPF_COUNT_UNHANDLED,
	ULPF_COUNT_UNDELIVERED,
	ULPF_COUNT_CHANGES,
	ULPF_COUNT_FLUSHES,
	ULPF_COUNTERS,
};

struct ulpf_counters {
	u64 value[ULPF_COUNTERS];
};

/**
 * struct ulpf_space - one guarded address space
 * @file: The device file; not counted, the space goes with it
 * @mm: The guarded mm; pinned so that no other can get its address, may be dead
 * @cred: The opener's; this user is charged
 * @charged: Pages, of which all are given back when the space ends
 * @pid_ns: The opener's; the numbers in events are this namespace's
 * @clock: The opener's CLOCK_MONOTONIC less the kernel's, nanoseconds
 * @store: The shmem file behind guarded mappings and aliases
 * @store_ops: Operations of shmem, of which the guarded mappings' are a copy
 * @guard_ops: Operations of guarded mappings; tells them from all others
 * @entry: The handler, or zero (mmap lock)
 * @cookie: For its frames (mmap lock)
 * @sigstack: Frames go to the thread's alternate signal stack (mmap lock)
 * @efault: The kernel's accesses fail (mmap lock)
 * @early: Counted among the spaces that need early.c (its lock)
 * @regions: Address >> 21 to struct ulpf_region (changes: mmap lock)
 * @regions_count: Number of regions (mmap lock)
 * @last_region: The one looked up last
 * @streak_page: Page of the store that page_mkwrite saw last
 * @streak_left: Further faults on it in a row until it is taken out
 * @streak_length: Initial value of @streak_left
 * @pli: Index to struct ulpf_pli_page (mmap lock)
 * @threads: Thread number to struct ulpf_thread
 * @threads_count: Number of threads (@threads' lock)
 * @threads_sweep: Count at which dead ones are looked for (@threads' lock)
 * @closers: Pages that the kernel's own accesses have opened (@closers_lock)
 * @close_work: Closes those that are open for too long
 * @ring: Events, once asked for; published with release
 * @counters: For ULPF_COUNTS
 */
struct ulpf_space {
	struct file *file;
	struct mm_struct *mm;
	const struct cred *cred;
	atomic_long_t charged;
	struct pid_namespace *pid_ns;
	s64 clock;
	struct file *store;
	const struct vm_operations_struct *store_ops;
	struct vm_operations_struct guard_ops;

	unsigned long entry;
	u64 cookie;
	bool sigstack;
	bool efault;
	bool early;

	struct xarray regions;
	unsigned long regions_count;
	struct ulpf_region *last_region;
	pgoff_t streak_page;
	unsigned int streak_left;
	unsigned int streak_length;
	struct xarray pli;

	struct xarray threads;
	unsigned int threads_count;
	unsigned int threads_sweep;

	struct list_head closers;
	spinlock_t closers_lock;
	struct delayed_work close_work;

	struct ulpf_ring_buffer *ring;
	struct mutex ring_lock;
	struct ulpf_counters __percpu *counters;
};

static inline void ulpf_count(struct ulpf_space *space, enum ulpf_counter counter)
{
	this_cpu_inc(space->counters->value[counter]);
}

/* Whether a task still uses the mm. */
static inline bool ulpf_alive(struct ulpf_space *space)
{
	return atomic_read(&space->mm->mm_users) > 0;
}

/*
 * Whether the calling thread is one of the space's program, with registers of the program's. It is not if another
 * process reaches in (ptrace), nor if a kernel thread does: for a device, say, whose page faults are resolved as user
 * mode's (SVA). Nor is a thread of the program that never leaves the kernel (io_uring's, vhost's).
 */
static inline bool ulpf_is_ours(const struct ulpf_space *space)
{
	return current->mm == space->mm && !(current->flags & (PF_KTHREAD | ULPF_WORKER));
}

/* Of a fault in the space's memory: an instruction of the program has made the access. */
static inline bool ulpf_by_program(const struct ulpf_space *space, unsigned int fault_flags)
{
	return (fault_flags & (FAULT_FLAG_USER | FAULT_FLAG_REMOTE)) == FAULT_FLAG_USER && ulpf_is_ours(space);
}

/* map.c: mappings */
int ulpf_mmap(struct file *file, struct vm_area_struct *vma);
bool ulpf_is_guarded(const struct vm_area_struct *vma);
void ulpf_lock_mappings(struct ulpf_space *space, unsigned long addr, unsigned long end);

/* Of a guarded mapping. */
static inline struct ulpf_space *ulpf_space_of(const struct vm_area_struct *vma)
{
	return container_of(vma->vm_ops, struct ulpf_space, guard_ops);
}

static inline bool ulpf_guards(const struct ulpf_space *space, const struct vm_area_struct *vma)
{
	return vma->vm_ops == &space->guard_ops;
}

/* fault.c: faults there, and entering the handler */
vm_fault_t ulpf_guarded_fault(struct vm_fault *vmf);
vm_fault_t ulpf_guarded_mkwrite(struct vm_fault *vmf);

/* early.c: the same without the page table */
void ulpf_early_want(struct ulpf_space *space);
void ulpf_early_forget(struct ulpf_space *space);
void ulpf_early_exit(void);

/* handler.c: the handler, and threads' exception stacks */
int ulpf_set_handler(struct ulpf_space *space, const struct ulpf_handler *handler);
int ulpf_set_stack(struct ulpf_space *space, const struct ulpf_stack *stack);
struct ulpf_thread *ulpf_thread(struct ulpf_space *space);
struct ulpf_thread *ulpf_thread_make(struct ulpf_space *space);
void ulpf_threads_free(struct ulpf_space *space);

/* access.c: the kernel's own accesses; work on the way back to user mode */
int ulpf_open_for_kernel(struct ulpf_space *space, struct vm_fault *vmf, bool write);
void ulpf_close_overdue(struct work_struct *work);
bool ulpf_find_open_for_kernel(struct ulpf_space *space, pgoff_t page);

/* Without the lock: what this task has put there it sees. */
static inline bool ulpf_is_open_for_kernel(struct ulpf_space *space, pgoff_t page)
{
	return unlikely(!list_empty(&space->closers)) && ulpf_find_open_for_kernel(space, page);
}

/* Whether an access that is not the program's fails. A core dump is to hold everything. */
static inline bool ulpf_fails_for_kernel(const struct ulpf_space *space)
{
	return unlikely(READ_ONCE(space->efault)) && !(current->flags & PF_DUMPCORE);
}

int ulpf_fault_in_later(struct ulpf_space *space, unsigned long addr, size_t size);

/* regions.c: what the permissions say */
static inline unsigned int ulpf_index(unsigned long addr)
{
	return (addr >> PAGE_SHIFT) % ULPF_REGION_PAGES;
}

/* ... of page k of the region. */
static inline unsigned int ulpf_permission(const struct ulpf_region *region, unsigned int k)
{
	return READ_ONCE(region->bits[k / 4]) >> (k % 4 * 2) & 3;
}

/* ULPF_EXE in a region, which we cannot honour, is ULPF_NONE. */
static inline bool ulpf_forbids(unsigned int permission, bool write)
{
	return permission > ULPF_RO || (permission == ULPF_RO && write);
}

static inline struct ulpf_region *ulpf_region(struct ulpf_space *space, unsigned long addr)
{
	unsigned long prefix = addr >> ULPF_REGION_SHIFT;
	/* Most faults are where the last one was. Regions stay until the space ends. */
	struct ulpf_region *region = READ_ONCE(space->last_region);

	if (likely(region && region->prefix == prefix))
		return region;
	region = xa_load(&space->regions, prefix);
	if (region)
		WRITE_ONCE(space->last_region, region);
	return region;
}

/* The first region in [*addr, end), or NULL; @addr goes to where it begins, if that is further on. */
static inline struct ulpf_region *ulpf_region_next(struct ulpf_space *space, unsigned long *addr, unsigned long end)
{
	struct ulpf_region *region;
	unsigned long prefix;

	if (*addr >= end)
		return NULL;
	region = ulpf_region(space, *addr);
	if (likely(region))
		return region;
	prefix = *addr >> ULPF_REGION_SHIFT;
	region = xa_find(&space->regions, &prefix, (end - 1) >> ULPF_REGION_SHIFT, XA_PRESENT);
	if (region)
		*addr = prefix << ULPF_REGION_SHIFT;
	return region;
}

/* Where the region at an address ends, or what lies in it of a range. */
static inline unsigned long ulpf_region_end(unsigned long addr, unsigned long end)
{
	return min(end, (addr | (ULPF_REGION_BYTES - 1)) + 1);
}

struct ulpf_region *ulpf_region_make(struct ulpf_space *space, unsigned long addr);
bool ulpf_region_fill(struct ulpf_region *region, unsigned long addr, unsigned long end,
		      unsigned int permission);
void ulpf_regions_clear(struct ulpf_space *space, unsigned long addr, unsigned long end);
void ulpf_regions_free(struct ulpf_space *space);

/* ops.c: changes, one and many */
int ulpf_apply(struct ulpf_space *space, const struct ulpf_op __user *arg);
int ulpf_batch(struct ulpf_space *space, struct ulpf_batch *batch);
int ulpf_lookup(struct ulpf_space *space, struct ulpf_page *page);

/* flush.c: what processors know of pages */
struct ulpf_stretch {
	unsigned long addr;
	unsigned long end;
};

/**
 * struct ulpf_stale - addresses of closed pages that TLBs may still hold as open
 * @space: Guarded address space
 * @sorted: The stretches are in order
 * @count: Number of stretches
 * @room: Capacity
 * @stretch: The stretches; each begins in a guarded mapping
 */
struct ulpf_stale {
	struct ulpf_space *space;
	bool sorted;
	unsigned int count;
	unsigned int room;
	struct ulpf_stretch *stretch;
};

void ulpf_flush(struct ulpf_space *space, pgoff_t first, pgoff_t count);
void ulpf_forget_now(struct ulpf_stale *stale);

/* Adds a stretch; false if there is no room. */
static __always_inline bool ulpf_forget_later(struct ulpf_stale *stale, unsigned long addr,
					      unsigned long end)
{
	struct ulpf_stretch *last = stale->stretch + stale->count - 1;

	if (stale->count) {
		if (addr == last->end) {
			last->end = end;
			return true;
		}
		if (stale->count == stale->room)
			return false;
		if (addr < last->addr)
			stale->sorted = false;
	}
	*++last = (struct ulpf_stretch){ addr, end };
	stale->count++;
	return true;
}

/* pli.c: regions that user space stores to */
int ulpf_pli_mmap(struct ulpf_space *space, struct vm_area_struct *vma);
int ulpf_pli_bind(struct ulpf_space *space, unsigned long addr, unsigned long region);
int ulpf_pli_unbind(struct ulpf_space *space, unsigned long addr);
void ulpf_pli_free(struct ulpf_space *space);

/* ring.c: events */
int ulpf_ring_make(struct ulpf_space *space, const struct ulpf_ring *arg);
int ulpf_ring_mmap(struct ulpf_space *space, struct vm_area_struct *vma);
void ulpf_ring_wake(struct ulpf_space *space);
void ulpf_ring_free(struct ulpf_space *space);
ssize_t ulpf_read(struct file *file, char __user *buffer, size_t count, loff_t *position);
__poll_t ulpf_poll(struct file *file, struct poll_table_struct *wait);
void ulpf_event(struct ulpf_space *space, unsigned int type, unsigned long addr,
		unsigned int info, bool user);

/* main.c */
int ulpf_charge(struct ulpf_space *space, unsigned long pages);
void ulpf_uncharge(struct ulpf_space *space, unsigned long pages);

#endif /* _ULPF_INTERNAL_H */
