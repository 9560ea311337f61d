// SPDX-License-Identifier: GPL-2.0
/*
 * Faults in guarded mappings: finds out whether the program or the kernel made the access, decides whether it
 * may pass, and enters the handler.
 *
 *   fault          no page is there. Every forbidden access arrives here at first,
 *                  because a change of permissions takes the pages out of the page table.
 *   page_mkwrite   a page is there for reading.
 *
 * Most upcalls are made before the kernel comes here (early.c); all of them can be made here.
 */
#include <linux/pagemap.h>
#include <linux/sched/task_stack.h>

#include "compat.h"
#include "ulpf_internal.h"
#include "upcall.h"

/*
 * Forbidden stores to one page in a row after which it loses read access as well. Each time it is read again,
 * the next streak must be four times as long, up to STREAK_LONGEST.
 */
#define STREAK_FIRST	256
#define STREAK_LONGEST	(1 << 20)

/*
 * Program or kernel?
 *
 * It is not the program if the thread is not one of the program's (ulpf_is_ours()). Otherwise FAULT_FLAG_USER
 * tells ->fault. The flags of ->page_mkwrite have been overwritten, so it uses:
 *
 *   - In a system call, or in an interrupt, orig_ax is not -1: the kernel.
 *   - In an exception of user mode it is -1. Either this is the fault of the program
 *     itself, or a fault of the kernel on its way back from some exception or from
 *     sigreturn: it writes a signal frame, say. The kernel's fault lies deeper on the
 *     stack, by a whole set of registers at least. The fault of the program goes from
 *     the top of the stack to struct vm_fault by one path of calls in a given kernel,
 *     so its depth is a constant, which ->fault learns.
 *
 * As long as it is not known, or if it turns out not to be constant, page_mkwrite takes
 * the page away, and has ->fault decide.
 */
#define DEPTH_UNKNOWN	0UL
#define DEPTH_VARIES	(~0UL)

static unsigned long user_depth __read_mostly;

static __always_inline unsigned long depth_of(const struct vm_fault *vmf)
{
	return (unsigned long)task_pt_regs(current) - (unsigned long)vmf;
}

static noinline void learn(unsigned long depth)
{
	unsigned long known = READ_ONCE(user_depth);

	if (known != DEPTH_VARIES)
		WRITE_ONCE(user_depth, known == DEPTH_UNKNOWN ? depth : DEPTH_VARIES);
}

enum who { USER, KERNEL, UNKNOWN };

static __always_inline enum who who_is(const struct ulpf_space *space, const struct vm_fault *vmf)
{
	unsigned long known = READ_ONCE(user_depth);

	if (!ulpf_is_ours(space))
		return KERNEL;
	if ((long)task_pt_regs(current)->orig_ax != -1)
		return KERNEL;
	if (likely(depth_of(vmf) == known))
		return USER;
	return known == DEPTH_UNKNOWN || known == DEPTH_VARIES ? UNKNOWN : KERNEL;
}

/* Where the frame would begin; 0 if there is no room. */
static unsigned long frame_place(const struct ulpf_thread *thread, unsigned long sp, u64 *info)
{
	if (thread && thread->length) {
		*info |= ULPF_INFO_STACK;
		if (sp - thread->base >= thread->length)
			return thread->base + thread->length - sizeof(struct ulpf_frame);
		if (sp - thread->base < ULPF_STACK_MIN)
			return 0;
	}
	return ulpf_plain_place(sp);
}

static bool is_guarded(unsigned long addr)
{
	struct vm_area_struct *vma = find_vma(current->mm, addr);

	return vma && vma->vm_start <= addr && ulpf_is_guarded(vma);
}

static vm_fault_t undelivered(struct ulpf_space *space, struct vm_fault *vmf, u32 info)
{
	ulpf_count(space, ULPF_COUNT_UNDELIVERED);
	ulpf_event(space, ULPF_EVENT_UNDELIVERED, vmf->real_address, info, true);
	return VM_FAULT_SIGSEGV;
}

/* All ways into the handler but the usual one (upcall.h). */
static noinline vm_fault_t upcall_slowly(struct ulpf_space *space, struct vm_fault *vmf, u32 info)
{
	struct pt_regs *regs = task_pt_regs(current);
	struct ulpf_thread *thread = NULL;
	unsigned long place;
	u64 told = info;

	if (!space->entry) {
		ulpf_count(space, ULPF_COUNT_UNHANDLED);
		ulpf_event(space, ULPF_EVENT_UNHANDLED, vmf->real_address, info, true);
		return VM_FAULT_SIGSEGV;
	}
	if (space->sigstack) {
		if (!current->sas_ss_size)
			return VM_FAULT_SIGSEGV;
		told |= ULPF_INFO_STACK;
		place = ulpf_sigstack_place(regs->sp);
	} else {
		if (READ_ONCE(space->threads_count))
			thread = ulpf_thread(space);
		place = frame_place(thread, regs->sp, &told);
	}
	if (!place)
		return undelivered(space, vmf, info);
	if (!ulpf_frame_write((struct ulpf_frame __user *)place, space, regs, vmf->real_address, told)) {
		ulpf_enter(space, regs, place);
		return VM_FAULT_NOPAGE;
	}
	/* The mapping there is not locked. */
	if (vmf->flags & ULPF_FAULT_WITHOUT_MMAP_LOCK)
		return ulpf_take_mmap_lock(vmf);
	/* The handler's own memory would fault, and its handler, and so on. */
	if (is_guarded(place) || is_guarded(place + sizeof(struct ulpf_frame) - 1))
		return undelivered(space, vmf, info);
	/* Not there yet, or swapped out. It is brought in on the way back, and the access faults again. */
	if (ulpf_fault_in_later(space, place, sizeof(struct ulpf_frame)))
		return VM_FAULT_OOM;
	return VM_FAULT_NOPAGE;
}

/* Has the thread, which made the fault in user mode, go on in the handler. */
static __always_inline vm_fault_t upcall(struct ulpf_space *space, struct vm_fault *vmf, u32 info)
{
	if (likely(ulpf_upcall(space, task_pt_regs(current), vmf->real_address, info)))
		return VM_FAULT_NOPAGE;
	return upcall_slowly(space, vmf, info);
}

/* A guard range: 0 if the access may go on. */
static noinline vm_fault_t judge_guard(struct ulpf_space *space, struct vm_fault *vmf,
				       struct ulpf_region *region, bool user)
{
	unsigned int k = ulpf_index(vmf->real_address);

	if (test_bit(k, region->stop)) {
		ulpf_count(space, ULPF_COUNT_GUARDS);
		ulpf_event(space, ULPF_EVENT_GUARD, vmf->real_address, ulpf_info(vmf->flags), user);
		return VM_FAULT_SIGSEGV;
	}
	/* The first of several threads tells. */
	if (test_bit(k, region->log) && test_and_clear_bit(k, region->log)) {
		ulpf_count(space, ULPF_COUNT_GUARDS);
		ulpf_event(space, ULPF_EVENT_GUARD, vmf->real_address, ulpf_info(vmf->flags), user);
	}
	return 0;
}

/*
 * A huge page of the store would be mapped by one entry, with one permission for all of its pages. Where there is a page
 * table, it is not. (No function, so that is all that this does.)
 */
static int make_page_table(struct vm_fault *vmf)
{
	if (likely(!pmd_none(*vmf->pmd)))
		return 0;
	return apply_to_page_range(vmf->vma->vm_mm, vmf->address & PAGE_MASK, PAGE_SIZE, NULL, NULL);
}

/*
 * Since Linux 6.6 the kernel may remove a page table in the midst of a fault, when it collapses the store's
 * pages (MADV_COLLAPSE of an alias). It does so with the huge page locked. If this fault holds that lock and
 * the page table is still there, it stays until the page is mapped. If it has gone, the access faults again.
 */
static vm_fault_t map_from_store(struct ulpf_space *space, struct vm_fault *vmf)
{
	vm_fault_t result = space->store_ops->fault(vmf);

	if (likely(!(result & VM_FAULT_LOCKED) || !pmd_none(*vmf->pmd)))
		return result;
	unlock_page(vmf->page);
	put_page(vmf->page);
	vmf->page = NULL;
	return VM_FAULT_NOPAGE;
}

/* Result of page_mkwrite for a store that may pass. */
static vm_fault_t let_write(struct vm_fault *vmf)
{
	struct page *page = vmf->page;

	if (likely(!PageTransCompound(page)))
		return 0;
	lock_page(page);
	if (page_folio(page)->mapping && !pmd_none(*vmf->pmd))
		return VM_FAULT_LOCKED;
	unlock_page(page);
	return VM_FAULT_NOPAGE;
}

vm_fault_t ulpf_guarded_fault(struct vm_fault *vmf)
{
	struct vm_area_struct *vma = vmf->vma;
	struct ulpf_space *space = ulpf_space_of(vma);
	bool write = vmf->flags & FAULT_FLAG_WRITE;
	bool user = ulpf_by_program(space, vmf->flags);
	struct ulpf_region *region;
	unsigned int permission;

	/* A forked child shares the memory, but is not guarded. */
	if (unlikely(vma->vm_mm != space->mm))
		goto allow;
	if (user && unlikely(depth_of(vmf) != READ_ONCE(user_depth)))
		learn(depth_of(vmf));
	region = ulpf_region(space, vmf->real_address);
	if (unlikely(!region))
		goto allow;
	if (unlikely(region->guarded)) {
		vm_fault_t stop = judge_guard(space, vmf, region, user);

		if (stop)
			return stop;
	}
	permission = ulpf_permission(region, ulpf_index(vmf->real_address));
	if (!ulpf_forbids(permission, write))
		goto allow;
	if (likely(user))
		return upcall(space, vmf, ulpf_info(vmf->flags) | permission << ULPF_INFO_PERM_SHIFT);
	if (ulpf_fails_for_kernel(space))
		return VM_FAULT_SIGSEGV;
	if (ulpf_open_for_kernel(space, vmf, write))
		return VM_FAULT_OOM;
allow:
	return make_page_table(vmf) ? VM_FAULT_OOM : map_from_store(space, vmf);
}

/*
 * ->fault is the shorter path to an upcall, by a tenth. So a page that was read once and is only stored to
 * since is taken out; a later read maps it again. Races between threads only miscount.
 */
static noinline void end_streak(struct ulpf_space *space, pgoff_t page)
{
	if (space->streak_page != page) {
		space->streak_page = page;
		space->streak_length = STREAK_FIRST;
	} else {
		ulpf_flush(space, page, 1);
		space->streak_length = min(space->streak_length * 4, STREAK_LONGEST);
	}
	space->streak_left = space->streak_length;
}

/*
 * Takes the page out, so that the access faults again in ->fault, which knows its origin and the lock held.
 */
static noinline vm_fault_t ask_fault(struct ulpf_space *space, struct vm_fault *vmf)
{
	ulpf_flush(space, vmf->pgoff, 1);
	return VM_FAULT_NOPAGE;
}

static noinline vm_fault_t mkwrite_not_by_program(struct ulpf_space *space, struct vm_fault *vmf, enum who who)
{
	if (who == KERNEL && ulpf_fails_for_kernel(space))
		return VM_FAULT_SIGSEGV;
	if (who == KERNEL)
		return ulpf_open_for_kernel(space, vmf, true) ? VM_FAULT_OOM : let_write(vmf);
	return ask_fault(space, vmf);
}

vm_fault_t ulpf_guarded_mkwrite(struct vm_fault *vmf)
{
	struct vm_area_struct *vma = vmf->vma;
	struct ulpf_space *space = ulpf_space_of(vma);
	struct ulpf_region *region;
	unsigned int permission;
	enum who who;

	if (unlikely(vma->vm_mm != space->mm))
		return let_write(vmf);
	region = ulpf_region(space, vmf->real_address);
	if (unlikely(!region))
		return let_write(vmf);
	permission = ulpf_permission(region, ulpf_index(vmf->real_address));
	if (!ulpf_forbids(permission, true))
		return let_write(vmf);
	/* ->fault may have let pass this very access. */
	if (ulpf_is_open_for_kernel(space, vmf->pgoff))
		return let_write(vmf);
	who = who_is(space, vmf);
	if (unlikely(who != USER))
		return mkwrite_not_by_program(space, vmf, who);
	if (unlikely(space->streak_page != vmf->pgoff || !--space->streak_left))
		end_streak(space, vmf->pgoff);
	if (likely(ulpf_upcall(space, task_pt_regs(current), vmf->real_address,
			       ULPF_INFO_WRITE | permission << ULPF_INFO_PERM_SHIFT)))
		return VM_FAULT_NOPAGE;
	return ask_fault(space, vmf);
}
