// SPDX-License-Identifier: GPL-2.0
/*
 * Changes: one operation, or a list of them in one crossing.
 *
 * A change that forbids has to take pages out of the page table, which is what it costs.
 * So the pages of a whole chunk of operations are collected, sorted, and taken out in as
 * few stretches as possible, before the mmap lock is given back.
 */
#include <linux/mm.h>
#include <linux/overflow.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/sort.h>
#include <linux/uaccess.h>

#include "ulpf_internal.h"

/* Operations that are carried out under the lock at a time. */
#define CHUNK	1024

/* Taking out a page between two that have to go costs less than a flush of its own. */
#define GAP	16

struct stretch {
	pgoff_t first;
	pgoff_t end;
};

/**
 * struct changes - what is being carried out
 * @space: where
 * @vma: the guarded mapping that was looked at last
 * @sorted: the stretches are in order
 * @count: stretches of the store that have to be flushed
 * @room: for how many there is room
 * @stretch: they
 */
struct changes {
	struct ulpf_space *space;
	struct vm_area_struct *vma;
	bool sorted;
	unsigned int count;
	unsigned int room;
	struct stretch *stretch;
};

void ulpf_flush(struct ulpf_space *space, pgoff_t first, pgoff_t count)
{
	ulpf_count(space, ULPF_COUNT_FLUSHES);
	unmap_mapping_range(space->store->f_mapping, (loff_t)first << PAGE_SHIFT,
			    (loff_t)count << PAGE_SHIFT, 0);
}

static int by_first(const void *a, const void *b)
{
	const struct stretch *one = a, *other = b;

	return one->first < other->first ? -1 : one->first > other->first;
}

static void flush_all(struct changes *changes)
{
	struct stretch *at = changes->stretch, *end = at + changes->count, now;

	if (!changes->count)
		return;
	if (!changes->sorted)
		sort(at, changes->count, sizeof(*at), by_first, NULL);
	now = *at;
	while (++at < end) {
		if (at->first <= now.end + GAP) {
			now.end = max(now.end, at->end);
			continue;
		}
		ulpf_flush(changes->space, now.first, now.end - now.first);
		now = *at;
	}
	ulpf_flush(changes->space, now.first, now.end - now.first);
	changes->count = 0;
	changes->sorted = true;
}

static __always_inline void flush_later(struct changes *changes, pgoff_t first, pgoff_t end)
{
	struct stretch *last = changes->stretch + changes->count - 1;

	if (changes->count) {
		if (first >= last->first && first <= last->end + GAP) {
			last->end = max(last->end, end);
			return;
		}
		if (first < last->first)
			changes->sorted = false;
		if (changes->count == changes->room) {
			flush_all(changes);
			last = changes->stretch - 1;
		}
	}
	changes->stretch[changes->count++] = (struct stretch){ first, end };
}

/* The guarded mapping at an address. */
static struct vm_area_struct *guarded_at(struct changes *changes, unsigned long addr)
{
	struct vm_area_struct *vma = changes->vma;

	if (vma && vma->vm_start <= addr && addr < vma->vm_end)
		return vma;
	vma = find_vma(changes->space->mm, addr);
	if (!vma || vma->vm_start > addr || !ulpf_guards(changes->space, vma))
		return NULL;
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

/* What processors know of a range is to be forgotten. All of it is guarded. */
static void forget(struct changes *changes, unsigned long addr, unsigned long end)
{
	while (addr < end) {
		struct vm_area_struct *vma = guarded_at(changes, addr);
		unsigned long to = min(end, vma->vm_end);
		pgoff_t first = vma->vm_pgoff + ((addr - vma->vm_start) >> PAGE_SHIFT);

		flush_later(changes, first, first + ((to - addr) >> PAGE_SHIFT));
		addr = to;
	}
}

/* ... where not all of it need be guarded. */
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

static int set_permission(struct changes *changes, unsigned long addr, unsigned long end,
			  unsigned int permission)
{
	while (addr < end) {
		unsigned long to = min(end, (addr | ((1UL << ULPF_REGION_SHIFT) - 1)) + 1);
		struct ulpf_region *region = ulpf_region(changes->space, addr);

		/* Without a region nothing is forbidden. */
		if (!region && permission != ULPF_RW) {
			region = ulpf_region_make(changes->space, addr);
			if (!region)
				return -ENOMEM;
		}
		if (region && ulpf_region_fill(region, addr, to, permission))
			forget(changes, addr, to);
		addr = to;
		cond_resched();
	}
	return 0;
}

static int set_guard(struct changes *changes, unsigned long addr, unsigned long end, unsigned int guard)
{
	if (guard != ULPF_GUARD_OFF)
		forget(changes, addr, end);
	while (addr < end) {
		unsigned long to = min(end, (addr | ((1UL << ULPF_REGION_SHIFT) - 1)) + 1);
		struct ulpf_region *region = ulpf_region(changes->space, addr);
		unsigned int k = (addr >> PAGE_SHIFT) % ULPF_REGION_PAGES;
		unsigned int count = (to - addr) >> PAGE_SHIFT;

		if (!region && guard != ULPF_GUARD_OFF) {
			region = ulpf_region_make(changes->space, addr);
			if (!region)
				return -ENOMEM;
		}
		if (region) {
			bitmap_clear(region->log, k, count);
			bitmap_clear(region->stop, k, count);
			if (guard != ULPF_GUARD_OFF)
				bitmap_set(guard == ULPF_GUARD_LOG ? region->log : region->stop, k, count);
			region->guarded = !bitmap_empty(region->log, ULPF_REGION_PAGES) ||
					  !bitmap_empty(region->stop, ULPF_REGION_PAGES);
		}
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

	if (op->length != 1UL << ULPF_REGION_SHIFT || op->addr % op->length ||
	    (op->op == ULPF_OP_UNBIND && op->arg))
		return -EINVAL;
	if (op->addr >= TASK_SIZE_MAX)
		return -EFAULT;
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
 * What long lists consist of: one page, next to the last one, in a region of ours. Only the
 * cheapest way of the same thing: false if it has to go the long way.
 */
static inline bool set_page(struct changes *changes, const struct ulpf_op *op)
{
	struct vm_area_struct *vma = changes->vma;
	struct ulpf_region *region = changes->space->last_region;
	unsigned int k = (op->addr >> PAGE_SHIFT) % ULPF_REGION_PAGES, shift = k % 4 * 2;
	unsigned int old, change;
	pgoff_t page;

	if (op->op != ULPF_OP_SET || op->flags || op->length != PAGE_SIZE || op->addr % PAGE_SIZE ||
	    op->arg > ULPF_NONE || op->arg == ULPF_EXE)
		return false;
	if (!vma || op->addr - vma->vm_start >= vma->vm_end - vma->vm_start)
		return false;
	if (!region || region->prefix != op->addr >> ULPF_REGION_SHIFT || region->slot)
		return false;
	old = region->own[k / 4];
	change = (old >> shift & 3) ^ op->arg;
	if (!change)
		return true;
	WRITE_ONCE(region->own[k / 4], old ^ change << shift);
	if (change & op->arg) {
		page = vma->vm_pgoff + ((op->addr - vma->vm_start) >> PAGE_SHIFT);
		flush_later(changes, page, page + 1);
	}
	return true;
}

/* Carries out some operations, as many as go well; the first error. */
static int carry_out_all(struct changes *changes, const struct ulpf_op *op, unsigned int count,
			 u32 *done)
{
	unsigned int i;
	int error = 0;

	if (mmap_write_lock_killable(changes->space->mm))
		return -EINTR;
	changes->vma = NULL;
	for (i = 0; i < count; i++) {
		if (likely(set_page(changes, op + i)))
			continue;
		error = carry_out(changes, op + i);
		if (error)
			break;
		/* Each of these may be long. */
		cond_resched();
	}
	flush_all(changes);
	mmap_write_unlock(changes->space->mm);
	this_cpu_add(changes->space->counters->value[ULPF_COUNT_CHANGES], i);
	*done += i;
	return error;
}

int ulpf_apply(struct ulpf_space *space, const struct ulpf_op __user *arg)
{
	struct stretch stretch[4];
	struct changes changes = {
		.space = space, .sorted = true, .room = ARRAY_SIZE(stretch), .stretch = stretch,
	};
	struct ulpf_op op;
	u32 done = 0;

	if (copy_from_user(&op, arg, sizeof(op)))
		return -EFAULT;
	return carry_out_all(&changes, &op, 1, &done);
}

struct chunk {
	struct stretch stretch[CHUNK];
	struct ulpf_op op[CHUNK];
};

/* Word by word: so short a list is not worth the start of a string instruction. */
static int copy_ops(struct ulpf_op *to, const struct ulpf_op __user *from, u32 count)
{
	if (!user_read_access_begin(from, count * sizeof(*from)))
		return -EFAULT;
	for (; count; count--, to++, from++) {
		unsafe_get_user(*(u64 *)&to->op, (const u64 __user *)&from->op, fault);
		unsafe_get_user(to->addr, &from->addr, fault);
		unsafe_get_user(to->length, &from->length, fault);
		unsafe_get_user(to->arg, &from->arg, fault);
	}
	user_read_access_end();
	return 0;
fault:
	user_read_access_end();
	return -EFAULT;
}

int ulpf_batch(struct ulpf_space *space, struct ulpf_batch *batch)
{
	const struct ulpf_op __user *ops = u64_to_user_ptr(batch->ops);
	struct changes changes = { .space = space, .sorted = true, .room = CHUNK };
	struct chunk *chunk;
	int error = 0;

	batch->done = 0;
	if (batch->flags || batch->reserved || batch->op_size != sizeof(struct ulpf_op))
		return -EINVAL;
	if (batch->count > ULPF_BATCH_MAX)
		return -E2BIG;
	chunk = kvmalloc(sizeof(*chunk), GFP_KERNEL_ACCOUNT);
	if (!chunk)
		return -ENOMEM;
	changes.stretch = chunk->stretch;
	while (!error && batch->done < batch->count) {
		u32 count = min_t(u32, batch->count - batch->done, CHUNK);

		if (copy_ops(chunk->op, ops + batch->done, count))
			error = -EFAULT;
		else if (fatal_signal_pending(current))
			error = -EINTR;
		else
			error = carry_out_all(&changes, chunk->op, count, &batch->done);
		cond_resched();
	}
	kvfree(chunk);
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
		unsigned int k = (page->addr >> PAGE_SHIFT) % ULPF_REGION_PAGES;

		page->permission = ulpf_permission(region, page->addr);
		page->guard = test_bit(k, region->stop) ? ULPF_GUARD_STOP :
			      test_bit(k, region->log) ? ULPF_GUARD_LOG : ULPF_GUARD_OFF;
		if (region->slot)
			page->state |= ULPF_PAGE_BOUND;
	}
	mmap_read_unlock(space->mm);
	return 0;
}
