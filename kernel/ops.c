// SPDX-License-Identifier: GPL-2.0
/*
 * Changes: one operation, or a list of them in one crossing.
 *
 * TLBs may still permit what a change has forbidden (flush.c). So the addresses of a whole chunk of
 * operations are collected, and are flushed together, before the mmap lock is given back.
 */
#include <linux/mm.h>
#include <linux/overflow.h>
#include <linux/sched/signal.h>
#include <linux/pagemap.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "compat.h"
#include "ulpf_internal.h"

/* Operations that are carried out under the lock at a time. */
#define CHUNK	1024

/* Stretches of addresses that are collected before processors have to forget them. */
#define STRETCHES 256

/* No error: the list's memory has to be brought in. */
#define LIST_ABSENT 1

/**
 * struct changes - state while operations are carried out
 * @space: Guarded address space
 * @vma: The guarded mapping that was looked at last
 * @region: The region that was changed last
 * @stale: Addresses to flush from TLBs
 */
struct changes {
	struct ulpf_space *space;
	struct vm_area_struct *vma;
	struct ulpf_region *region;
	struct ulpf_stale stale;
};

/* The guarded mapping at an address; no fault gets past its permissions until the lock is given back. */
static struct vm_area_struct *guarded_at(struct changes *changes, unsigned long addr)
{
	struct vm_area_struct *vma = changes->vma;

	if (vma && vma->vm_start <= addr && addr < vma->vm_end)
		return vma;
	vma = find_vma(changes->space->mm, addr);
	if (!vma || vma->vm_start > addr || !ulpf_guards(changes->space, vma))
		return NULL;
	ulpf_vma_lock(vma);
	return changes->vma = vma;
}

static bool all_guarded(struct changes *changes, unsigned long addr, unsigned long end)
{
	while (addr < end) {
		struct vm_area_struct *vma = guarded_at(changes, addr);

		if (!vma)
			return false;
		addr = vma->vm_end;
	}
	return true;
}

/* Notes a range that TLBs have to forget. It begins in guarded memory. */
static void forget(struct changes *changes, unsigned long addr, unsigned long end)
{
	if (ulpf_forget_later(&changes->stale, addr, end))
		return;
	ulpf_forget_now(&changes->stale);
	ulpf_forget_later(&changes->stale, addr, end);
}

/* The same for a range that need not be guarded as a whole. */
static void forget_guarded(struct changes *changes, unsigned long addr, unsigned long end)
{
	struct vm_area_struct *vma;

	while (addr < end && (vma = find_vma(changes->space->mm, addr)) && vma->vm_start < end) {
		if (ulpf_guards(changes->space, vma)) {
			changes->vma = vma;
			forget(changes, max(addr, vma->vm_start), min(end, vma->vm_end));
		}
		addr = vma->vm_end;
	}
}

/*
 * Makes all regions of a range, which takes long if there are many, and may fail. They forbid nothing yet: so a range
 * changes as a whole, or not at all.
 */
static int make_regions(struct ulpf_space *space, unsigned long addr, unsigned long end)
{
	for (; addr < end; addr = ulpf_region_end(addr, end)) {
		if (ulpf_region(space, addr))
			continue;
		if (fatal_signal_pending(current))
			return -EINTR;
		if (!ulpf_region_make(space, addr))
			return -ENOMEM;
		cond_resched();
	}
	return 0;
}

/* Without a region nothing is forbidden: if nothing is to be, those that are there are enough. */
static int set_permission(struct changes *changes, unsigned long addr, unsigned long end,
			  unsigned int permission)
{
	int error = permission == ULPF_RW ? 0 : make_regions(changes->space, addr, end);
	struct ulpf_region *region;

	if (error)
		return error;
	while ((region = ulpf_region_next(changes->space, &addr, end))) {
		unsigned long to = ulpf_region_end(addr, end);

		if (ulpf_region_fill(region, addr, to, permission))
			forget(changes, addr, to);
		changes->region = region;
		addr = to;
		cond_resched();
	}
	return 0;
}

static int set_guard(struct changes *changes, unsigned long addr, unsigned long end, unsigned int guard)
{
	int error = guard == ULPF_GUARD_OFF ? 0 : make_regions(changes->space, addr, end);
	struct ulpf_region *region;

	if (error)
		return error;
	if (guard != ULPF_GUARD_OFF)
		forget(changes, addr, end);
	while ((region = ulpf_region_next(changes->space, &addr, end))) {
		unsigned long to = ulpf_region_end(addr, end);
		unsigned int k = ulpf_index(addr);
		unsigned int count = (to - addr) >> PAGE_SHIFT;

		bitmap_clear(region->log, k, count);
		bitmap_clear(region->stop, k, count);
		if (guard != ULPF_GUARD_OFF)
			bitmap_set(guard == ULPF_GUARD_LOG ? region->log : region->stop, k, count);
		region->guarded = !bitmap_empty(region->log, ULPF_REGION_PAGES) ||
				  !bitmap_empty(region->stop, ULPF_REGION_PAGES);
		addr = to;
		cond_resched();
	}
	return 0;
}

static int change_range(struct changes *changes, const struct ulpf_op *op)
{
	unsigned long end;

	if (op->op == ULPF_OP_SET ? op->arg > ULPF_NONE :
	    op->op == ULPF_OP_GUARD ? op->arg > ULPF_GUARD_STOP : op->arg)
		return -EINVAL;
	if (!op->length || !PAGE_ALIGNED(op->addr | op->length) ||
	    check_add_overflow(op->addr, op->length, &end))
		return -EINVAL;
	if (op->op == ULPF_OP_SET && op->arg == ULPF_EXE)
		return -EOPNOTSUPP;
	if (!all_guarded(changes, op->addr, end))
		return -ENOMEM;
	switch (op->op) {
	case ULPF_OP_SET:
		return set_permission(changes, op->addr, end, op->arg);
	case ULPF_OP_GUARD:
		return set_guard(changes, op->addr, end, op->arg);
	default:
		forget(changes, op->addr, end);
		return 0;
	}
}

static int change_binding(struct changes *changes, const struct ulpf_op *op)
{
	int error;

	if (op->length != ULPF_REGION_BYTES || op->addr % op->length ||
	    (op->op == ULPF_OP_UNBIND && op->arg))
		return -EINVAL;
	if (op->addr >= TASK_SIZE_MAX)
		return -EFAULT;
	ulpf_lock_mappings(changes->space, op->addr, op->addr + op->length);
	error = op->op == ULPF_OP_BIND ? ulpf_pli_bind(changes->space, op->addr, op->arg) :
					 ulpf_pli_unbind(changes->space, op->addr);
	if (!error && op->op == ULPF_OP_BIND)
		forget_guarded(changes, op->addr, op->addr + op->length);
	return error;
}

static int carry_out(struct changes *changes, const struct ulpf_op *op)
{
	if (op->flags)
		return -EINVAL;
	switch (op->op) {
	case ULPF_OP_SET:
	case ULPF_OP_SYNC:
	case ULPF_OP_GUARD:
		return change_range(changes, op);
	case ULPF_OP_BIND:
	case ULPF_OP_UNBIND:
		return change_binding(changes, op);
	default:
		return -EINVAL;
	}
}

/*
 * Fast path for long lists: single pages in the mapping and in the region (not a PLI region) of the operation
 * before. Reads the user's list directly and keeps the state in registers. Returns how many operations it
 * carried out; the next one takes the general path.
 */
static u32 set_pages(struct changes *changes, const struct ulpf_op __user *ops, u32 count)
{
	struct ulpf_region *region = changes->region;
	unsigned long start, prefix;
	const u64 plain = ULPF_OP_SET;
	size_t length;
	u32 i = 0;

	if (!changes->vma || !region || region->slot)
		return 0;
	start = changes->vma->vm_start;
	length = changes->vma->vm_end - start;
	prefix = region->prefix;
	if (!user_read_access_begin(ops, count * sizeof(*ops)))
		return 0;
	for (; i < count; i++, ops++) {
		unsigned int old, change, shift;
		u64 head, addr, size, arg;
		u8 *byte;

		/* @op and @flags in one. */
		unsafe_get_user(head, (const u64 __user *)&ops->op, end);
		unsafe_get_user(addr, &ops->addr, end);
		unsafe_get_user(size, &ops->length, end);
		unsafe_get_user(arg, &ops->arg, end);
		if (head != plain || size != PAGE_SIZE || addr % PAGE_SIZE || arg > ULPF_NONE || arg == ULPF_EXE)
			break;
		if (addr - start >= length || addr >> ULPF_REGION_SHIFT != prefix)
			break;
		byte = region->own + (addr >> PAGE_SHIFT) % ULPF_REGION_PAGES / 4;
		shift = (addr >> PAGE_SHIFT) % 4 * 2;
		old = *byte;
		change = (old >> shift & 3) ^ arg;
		if ((change & arg) && !ulpf_forget_later(&changes->stale, addr, addr + PAGE_SIZE))
			break;
		WRITE_ONCE(*byte, old ^ change << shift);
	}
end:
	user_read_access_end();
	return i;
}

/* Carries out some operations of a list, as many as go well; the first error, or LIST_ABSENT. */
static int carry_out_some(struct changes *changes, const struct ulpf_op __user *ops, u32 count, u32 *done)
{
	struct ulpf_op op;
	u32 i = 0;
	int error = 0;

	if (mmap_write_lock_killable(changes->space->mm))
		return -EINTR;
	/* The list's memory cannot be brought in under the lock. */
	pagefault_disable();
	while (i < count && !fatal_signal_pending(current)) {
		i += set_pages(changes, ops + i, count - i);
		if (i == count)
			break;
		if (__copy_from_user_inatomic(&op, ops + i, sizeof(op))) {
			error = LIST_ABSENT;
			break;
		}
		pagefault_enable();
		error = carry_out(changes, &op);
		/* Each of these may be long. */
		cond_resched();
		pagefault_disable();
		if (error)
			break;
		i++;
	}
	pagefault_enable();
	ulpf_forget_now(&changes->stale);
	mmap_write_unlock(changes->space->mm);
	changes->vma = NULL;
	changes->region = NULL;
	this_cpu_add(changes->space->counters->value[ULPF_COUNT_CHANGES], i);
	*done += i;
	return error;
}

int ulpf_apply(struct ulpf_space *space, const struct ulpf_op __user *arg)
{
	struct ulpf_stretch stretch[4];
	struct changes changes = {
		.space = space,
		.stale = { .space = space, .sorted = true, .room = ARRAY_SIZE(stretch), .stretch = stretch },
	};
	struct ulpf_op op;
	int error;

	if (copy_from_user(&op, arg, sizeof(op)))
		return -EFAULT;
	if (mmap_write_lock_killable(space->mm))
		return -EINTR;
	error = carry_out(&changes, &op);
	ulpf_forget_now(&changes.stale);
	mmap_write_unlock(space->mm);
	if (!error)
		ulpf_count(space, ULPF_COUNT_CHANGES);
	return error;
}

int ulpf_batch(struct ulpf_space *space, struct ulpf_batch *batch)
{
	const struct ulpf_op __user *ops = u64_to_user_ptr(batch->ops);
	struct changes changes = {
		.space = space,
		.stale = { .space = space, .sorted = true, .room = STRETCHES },
	};
	int error = 0;

	batch->done = 0;
	if (batch->flags || batch->reserved || batch->op_size != sizeof(struct ulpf_op))
		return -EINVAL;
	if (batch->count > ULPF_BATCH_MAX)
		return -E2BIG;
	if (!access_ok(ops, batch->count * sizeof(*ops)))
		return -EFAULT;
	changes.stale.stretch = kmalloc_array(STRETCHES, sizeof(struct ulpf_stretch), GFP_KERNEL_ACCOUNT);
	if (!changes.stale.stretch)
		return -ENOMEM;
	while (!error && batch->done < batch->count) {
		error = carry_out_some(&changes, ops + batch->done, min_t(u32, batch->count - batch->done, CHUNK),
				       &batch->done);
		if (error == LIST_ABSENT)
			error = fault_in_readable((const char __user *)(ops + batch->done), sizeof(*ops)) ?
				-EFAULT : 0;
		if (fatal_signal_pending(current))
			error = error ?: -EINTR;
		cond_resched();
	}
	kfree(changes.stale.stretch);
	return error;
}

int ulpf_lookup(struct ulpf_space *space, struct ulpf_page *page)
{
	struct vm_area_struct *vma;
	struct ulpf_region *region;

	if (page->flags || page->reserved)
		return -EINVAL;
	page->permission = ULPF_RW;
	page->guard = ULPF_GUARD_OFF;
	page->state = 0;
	if (page->addr >= TASK_SIZE_MAX)
		return -EFAULT;
	if (mmap_read_lock_killable(space->mm))
		return -EINTR;
	vma = find_vma(space->mm, page->addr);
	if (vma && vma->vm_start <= page->addr && ulpf_guards(space, vma))
		page->state |= ULPF_PAGE_GUARDED;
	region = ulpf_region(space, page->addr);
	if (region) {
		unsigned int k = ulpf_index(page->addr);

		page->permission = ulpf_permission(region, ulpf_index(page->addr));
		page->guard = test_bit(k, region->stop) ? ULPF_GUARD_STOP :
			      test_bit(k, region->log) ? ULPF_GUARD_LOG : ULPF_GUARD_OFF;
		if (region->slot)
			page->state |= ULPF_PAGE_BOUND;
	}
	mmap_read_unlock(space->mm);
	return 0;
}
