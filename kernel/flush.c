// SPDX-License-Identifier: GPL-2.0
/*
 * Removes stale permissions from page tables and TLBs.
 *
 * Most of the cost of a change is taking pages out of the page table: the kernel updates a page's dirty and
 * accessed bits, its LRU list and its statistics. That is some 1,300 instructions for a page that was
 * written. A page that may still be read can stay: it is enough that its entry forbids stores, which is one
 * locked instruction. So stretches of addresses are collected and then walked together. Entries lose the
 * right that has been forbidden. Only pages that must not be read are taken out.
 *
 * Processors keep entries in their TLBs, and modules have no interface to flush these. But mmu_gather flushes
 * the whole mm when it takes pages out while another change of entries is in progress (mm->tlb_flush_pending,
 * mm_tlb_flush_nested()). This file marks its changes as such.
 */
#include <linux/mm.h>
#include <linux/mm_inline.h>
#include <linux/mmu_notifier.h>
#include <linux/pgtable.h>
#include <linux/sched.h>
#include <linux/sort.h>

#include "ulpf_internal.h"

/*
 * Up to this many writable pages are taken out one by one: changing entries ends with a flush of everything.
 */
#define FEW	4

/* Takes pages of the store out of all page tables. */
void ulpf_flush(struct ulpf_space *space, pgoff_t first, pgoff_t count)
{
	ulpf_count(space, ULPF_COUNT_FLUSHES);
	unmap_mapping_range(space->store->f_mapping, (loff_t)first << PAGE_SHIFT,
			    (loff_t)count << PAGE_SHIFT, 0);
}

static void take_out(struct ulpf_space *space, const struct vm_area_struct *vma,
		     unsigned long addr, unsigned long end)
{
	ulpf_flush(space, vma->vm_pgoff + ((addr - vma->vm_start) >> PAGE_SHIFT),
		   (end - addr) >> PAGE_SHIFT);
}

/**
 * struct walk - a walk over page table entries
 * @mm: The memory
 * @region: Permissions of these pages
 * @end: Behind the last page, in this region
 * @protect: Entries that permit stores are changed; else, their pages have to go
 * @changed: An entry permitted more, and TLBs may still hold that
 * @from: First page to take out, if @to is not zero
 * @to: Behind the last one
 */
struct walk {
	struct mm_struct *mm;
	const struct ulpf_region *region;
	unsigned long end;
	bool protect;
	bool changed;
	unsigned long from;
	unsigned long to;
};

static unsigned long address_of(const struct ulpf_region *region, unsigned int k)
{
	return (region->prefix << ULPF_REGION_SHIFT) + k * PAGE_SIZE;
}

/*
 * Forbids stores by an entry, and takes the mark from it that its page was written: the page has the mark then. An entry
 * with the mark is made writable again without a page_mkwrite (by mprotect(), by NUMA balancing), since a write has been
 * permitted before.
 */
static void forbid_stores(pte_t *pte)
{
	struct page *page = pte_page(ptep_get(pte));

	atomic64_andnot(_PAGE_RW | ULPF_PAGE_DIRTY, (atomic64_t *)&pte->pte);
	/* The processor may have set the mark meanwhile, until the entry forbade stores. */
	if (!PageDirty(page))
		set_page_dirty(page);
}

/*
 * Looks at an entry, and at those behind it: a region's pages are in one page table, whose
 * lock is held.
 */
static int look_at(pte_t *pte, unsigned long addr, void *data)
{
	struct walk *walk = data;
	const struct ulpf_region *region = walk->region;
	unsigned int k = ulpf_index(addr);
	unsigned int end = k + ((walk->end - addr) >> PAGE_SHIFT);
	bool guarded = region->guarded;

	BUILD_BUG_ON(PMD_SIZE != 1UL << ULPF_REGION_SHIFT);
	for (; k < end; k++, pte++) {
		unsigned int permission = ulpf_permission(region, k);
		pte_t entry = ptep_get(pte);

		if (unlikely(guarded) && (test_bit(k, region->log) || test_bit(k, region->stop)))
			permission = ULPF_NONE;
		if (permission == ULPF_RW || pte_none(entry))
			continue;
		/* A page that is not present may be on its way to another place, and come back writable. */
		if (permission == ULPF_RO && pte_present(entry)) {
			if (!pte_write(entry) && !pte_dirty(entry))
				continue;
			if (walk->protect) {
				forbid_stores(pte);
				walk->changed = true;
				continue;
			}
		}
		/*
		 * If the processor has marked it as used, the kernel moves it to the active list on its way
		 * out, which is more than half of all its work. That a page is closed says as much of its use.
		 */
		if (walk->protect && pte_present(entry) && pte_young(entry))
			clear_bit(_PAGE_BIT_ACCESSED, (unsigned long *)&pte->pte);
		if (!walk->to)
			walk->from = address_of(region, k);
		walk->to = address_of(region, k) + PAGE_SIZE;
	}
	/* That was all. */
	return 1;
}

/* Forbids stores in [addr, end) of a guarded mapping, and takes out what may not be read. */
static void look_through(struct ulpf_space *space, struct walk *walk, const struct vm_area_struct *vma,
			 unsigned long addr, unsigned long end)
{
	unsigned long to;

	for (; (walk->region = ulpf_region_next(space, &addr, end)); addr = to) {
		to = ulpf_region_end(addr, end);
		walk->end = to;
		walk->to = 0;
		apply_to_existing_page_range(walk->mm, addr, to - addr, look_at, walk);
		if (walk->to)
			take_out(space, vma, walk->from, walk->to);
		cond_resched();
	}
}

/* All guarded mappings in all stretches. Without @walk they go as they are. */
static void each_mapping(struct ulpf_stale *stale, struct walk *walk)
{
	struct ulpf_space *space = stale->space;
	unsigned int i;

	for (i = 0; i < stale->count; i++) {
		unsigned long addr = stale->stretch[i].addr, end = stale->stretch[i].end;
		struct vm_area_struct *vma;

		while (addr < end && (vma = find_vma(space->mm, addr)) && vma->vm_start < end) {
			unsigned long from = max(addr, vma->vm_start), to = min(end, vma->vm_end);

			addr = vma->vm_end;
			if (!ulpf_guards(space, vma))
				continue;
			if (walk)
				look_through(space, walk, vma, from, to);
			else
				take_out(space, vma, from, to);
		}
	}
}

/* Whether changes of entries by others may not have reached all processors yet. */
static bool others_pending(struct mm_struct *mm)
{
#ifdef CONFIG_ARCH_WANT_BATCHED_UNMAP_TLB_FLUSH
	if (atomic_read(&mm->tlb_flush_batched))
		return true;
#endif
	return mm_tlb_flush_pending(mm);
}

static void forbid_few(struct ulpf_stale *stale)
{
	struct walk walk = { .mm = stale->space->mm };

	each_mapping(stale, others_pending(walk.mm) ? NULL : &walk);
}

static void forbid_many(struct ulpf_stale *stale)
{
	struct ulpf_space *space = stale->space;
	struct walk walk = { .mm = space->mm, .protect = true };
	unsigned long addr = stale->stretch[0].addr;
	bool flush = others_pending(walk.mm);

	inc_tlb_flush_pending(walk.mm);
	each_mapping(stale, &walk);
	/* One page, no matter which: they flush everything, for our sake. */
	if (walk.changed || flush)
		take_out(space, find_vma(walk.mm, addr), addr, addr + PAGE_SIZE);
	dec_tlb_flush_pending(walk.mm);
}

static int by_addr(const void *a, const void *b)
{
	const struct ulpf_stretch *one = a, *other = b;

	return one->addr < other->addr ? -1 : one->addr > other->addr;
}

/* Puts them in order, and together where they are near each other; returns how many pages that are. */
static unsigned long tidy(struct ulpf_stale *stale)
{
	struct ulpf_stretch *last = stale->stretch, *at = last, *end = at + stale->count;
	unsigned long bytes;

	if (!stale->sorted)
		sort(at, stale->count, sizeof(*at), by_addr, NULL);
	bytes = at->end - at->addr;
	while (++at < end) {
		if (at->addr <= last->end) {
			bytes += max(last->end, at->end) - last->end;
			last->end = max(last->end, at->end);
			continue;
		}
		bytes += at->end - at->addr;
		*++last = *at;
	}
	stale->count = last - stale->stretch + 1;
	return bytes >> PAGE_SHIFT;
}

/**
 * ulpf_forget_now - has processors forget all that was collected
 * @stale: The stretches; empty afterwards
 *
 * The mmap lock is held for writing. When this returns, the permissions of the stretches hold for all
 * threads.
 */
void ulpf_forget_now(struct ulpf_stale *stale)
{
	if (!stale->count)
		return;
	/* Mirrors of the page tables (KVM's, for instance) must be notified of each page. */
	if (tidy(stale) > FEW && !mm_has_notifiers(stale->space->mm))
		forbid_many(stale);
	else
		forbid_few(stale);
	stale->count = 0;
	stale->sorted = true;
}
