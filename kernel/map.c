// SPDX-License-Identifier: GPL-2.0
/*
 * Mappings of the store, and what happens at a fault.
 *
 * The store is a shmem file: swap, memory cgroups, migration and get_user_pages() work
 * as for any shared memory. A guarded mapping has shmem's operations but for three:
 *
 *   fault          no page is there. All that is guarded against comes by here at first,
 *                  because a change of permissions takes the pages out of the page table.
 *   page_mkwrite   a page is there for reading. Its existence makes the kernel map pages
 *                  read-only until it has been asked.
 *   map_pages      none: it would map neighbours that nobody has asked for.
 *
 * An alias is plain shmem.
 */
#include <linux/file.h>
#include <linux/pagemap.h>
#include <linux/sched/signal.h>

#include "compat.h"
#include "ulpf_internal.h"

#define KIND_SHIFT	(60 - PAGE_SHIFT)
#define KIND(offset)	((offset) >> 60)

/* So many forbidden stores to one page in a row: it may not be read any more. */
#define STREAK		256

static struct ulpf_space *space_of(const struct vm_area_struct *vma)
{
	return container_of((struct vm_operations_struct *)vma->vm_ops, struct ulpf_space, guard_ops);
}

static u32 info_of(const struct vm_fault *vmf)
{
	return (vmf->flags & FAULT_FLAG_WRITE ? ULPF_INFO_WRITE : 0) |
	       (vmf->flags & FAULT_FLAG_INSTRUCTION ? ULPF_INFO_FETCH : 0);
}

/* A guard range: 0 if the access may go on. */
static vm_fault_t judge_guard(struct ulpf_space *space, struct vm_fault *vmf,
			      struct ulpf_region *region)
{
	unsigned int k = (vmf->real_address >> PAGE_SHIFT) % ULPF_REGION_PAGES;
	bool user = vmf->flags & FAULT_FLAG_USER;

	if (test_bit(k, region->stop)) {
		ulpf_count(space, ULPF_COUNT_GUARDS);
		ulpf_event(space, ULPF_EVENT_GUARD, vmf->real_address, info_of(vmf), user);
		return VM_FAULT_SIGSEGV;
	}
	/* The first of several threads tells. */
	if (test_bit(k, region->log) && test_and_clear_bit(k, region->log)) {
		ulpf_count(space, ULPF_COUNT_GUARDS);
		ulpf_event(space, ULPF_EVENT_GUARD, vmf->real_address, info_of(vmf), user);
	}
	return 0;
}

static vm_fault_t guarded_fault(struct vm_fault *vmf)
{
	struct vm_area_struct *vma = vmf->vma;
	struct ulpf_space *space = space_of(vma);
	bool write = vmf->flags & FAULT_FLAG_WRITE;
	struct ulpf_region *region;
	unsigned int permission;

	if (vmf->flags & ULPF_FAULT_WITHOUT_MMAP_LOCK)
		return ulpf_take_mmap_lock(vmf);
	/* A forked child has the memory, but nobody guards it there. */
	if (vma->vm_mm != space->mm)
		goto allow;
	if (vmf->flags & FAULT_FLAG_USER)
		ulpf_learn(vmf);
	region = ulpf_region(space, vmf->real_address);
	if (!region)
		goto allow;
	if (region->guarded) {
		vm_fault_t stop = judge_guard(space, vmf, region);

		if (stop)
			return stop;
	}
	permission = ulpf_permission(region, vmf->real_address);
	if (!ulpf_forbids(permission, write))
		goto allow;
	if (vmf->flags & FAULT_FLAG_USER)
		return ulpf_upcall(space, vmf, info_of(vmf) | permission << ULPF_INFO_PERM_SHIFT);
	if (ulpf_fails_for_kernel(space))
		return VM_FAULT_SIGSEGV;
	if (ulpf_open_for_kernel(space, vmf, write))
		return VM_FAULT_OOM;
allow:
	return space->store_ops->fault(vmf);
}

static vm_fault_t guarded_mkwrite(struct vm_fault *vmf)
{
	struct vm_area_struct *vma = vmf->vma;
	struct ulpf_space *space = space_of(vma);
	struct ulpf_region *region;
	unsigned int permission;

	if (vma->vm_mm != space->mm)
		return 0;
	region = ulpf_region(space, vmf->real_address);
	if (!region)
		return 0;
	permission = ulpf_permission(region, vmf->real_address);
	if (!ulpf_forbids(permission, true))
		return 0;
	/* guarded_fault() may have let pass this very access. */
	if (ulpf_is_open_for_kernel(space, vmf->pgoff))
		return 0;
	switch (ulpf_who(vmf)) {
	case ULPF_USER:
		/*
		 * ->fault is the shorter way to an upcall, by a tenth. So a page that is only stored to,
		 * and was read once, goes; if it is read again, it comes back, which is rare enough.
		 * Races between threads only miscount.
		 */
		if (space->streak_page != vmf->pgoff) {
			space->streak_page = vmf->pgoff;
			space->streak = 0;
		} else if (unlikely(++space->streak % STREAK == 0)) {
			ulpf_flush(space, vmf->pgoff, 1);
		}
		return ulpf_upcall(space, vmf, ULPF_INFO_WRITE | permission << ULPF_INFO_PERM_SHIFT);
	case ULPF_KERNEL:
		if (ulpf_fails_for_kernel(space))
			return VM_FAULT_SIGSEGV;
		return ulpf_open_for_kernel(space, vmf, true) ? VM_FAULT_OOM : 0;
	default:
		/* Once more, with the page gone: guarded_fault() is told who it is. */
		ulpf_flush(space, vmf->pgoff, 1);
		return VM_FAULT_NOPAGE;
	}
}

/* A mapping was split, or copied at fork. */
static void guarded_open(struct vm_area_struct *vma)
{
	get_file(space_of(vma)->file);
}

static void guarded_close(struct vm_area_struct *vma)
{
	struct ulpf_space *space = space_of(vma);
	struct file *file = space->file;

	if (vma->vm_mm == space->mm) {
		/* What is mapped here next begins open. If everything ends, the regions end as well. */
		if (ulpf_alive(space))
			ulpf_regions_clear(space, vma->vm_start, vma->vm_end);
		else
			ulpf_ring_wake(space);
	}
	fput(file);
}

/* Permissions belong to addresses, and would not come along. */
static int guarded_mremap(struct vm_area_struct *vma)
{
	return -EINVAL;
}

/* Whether this is guarded memory of any space. */
bool ulpf_is_guarded(const struct vm_area_struct *vma)
{
	return vma->vm_ops && vma->vm_ops->page_mkwrite == guarded_mkwrite;
}

static int store_mmap(struct ulpf_space *space, struct vm_area_struct *vma, bool guarded)
{
	pgoff_t offset = vma->vm_pgoff & ((1UL << KIND_SHIFT) - 1);
	int error;

	if (offset + vma_pages(vma) > ULPF_STORE_SIZE >> PAGE_SHIFT)
		return -EINVAL;
	vma->vm_pgoff = offset;
	/* One entry of the page table for each page, or one page's permission would be its neighbours', too. */
	ulpf_flags(vma, VM_NOHUGEPAGE | (guarded ? VM_DONTEXPAND : 0), VM_HUGEPAGE);
	vma_set_file(vma, space->store);
	error = call_mmap(space->store, vma);
	if (error || !guarded)
		return error;
	if (!space->store_ops) {
		space->guard_ops = *vma->vm_ops;
		space->guard_ops.fault = guarded_fault;
		space->guard_ops.page_mkwrite = guarded_mkwrite;
		space->guard_ops.map_pages = NULL;
		space->guard_ops.huge_fault = NULL;
		space->guard_ops.open = guarded_open;
		space->guard_ops.close = guarded_close;
		space->guard_ops.mremap = guarded_mremap;
		space->store_ops = vma->vm_ops;
	}
	vma->vm_ops = &space->guard_ops;
	get_file(space->file);
	return 0;
}

int ulpf_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct ulpf_space *space = file->private_data;
	unsigned long kind = vma->vm_pgoff >> KIND_SHIFT;

	if (!(vma->vm_flags & VM_SHARED))
		return -EINVAL;
	if (kind == KIND(ULPF_MAP_RING))
		return ulpf_ring_mmap(space, vma);
	if (vma->vm_mm != space->mm)
		return -EPERM;
	switch (kind) {
	case KIND(ULPF_MAP_GUARD):
		return store_mmap(space, vma, true);
	case KIND(ULPF_MAP_ALIAS):
		return store_mmap(space, vma, false);
	case KIND(ULPF_MAP_PLI):
		return ulpf_pli_mmap(space, vma);
	default:
		return -EINVAL;
	}
}
