// SPDX-License-Identifier: GPL-2.0
/*
 * Mappings of the store.
 *
 * The store is a shmem file: swap, memory cgroups, migration and get_user_pages() work as for any shared
 * memory. A guarded mapping has shmem's operations except three. fault and page_mkwrite decide (fault.c). A
 * page_mkwrite makes the kernel map pages read-only until it has been called. map_pages would map
 * neighbouring pages without a check: it is absent, or does nothing.
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

/* A mapping was split, or copied at fork. */
static void guarded_open(struct vm_area_struct *vma)
{
	get_file(ulpf_space_of(vma)->file);
}

static void guarded_close(struct vm_area_struct *vma)
{
	struct ulpf_space *space = ulpf_space_of(vma);
	struct file *file = space->file;

	if (vma->vm_mm == space->mm) {
		/*
		 * The next mapping at these addresses starts without permissions. If the mm ends, its regions
		 * are freed with it.
		 */
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

#if ULPF_NEEDS_MAP_PAGES
static vm_fault_t no_neighbours(struct vm_fault *vmf, pgoff_t first, pgoff_t last)
{
	return 0;
}
#else
#define no_neighbours NULL
#endif

/* Whether this is guarded memory of any space. */
bool ulpf_is_guarded(const struct vm_area_struct *vma)
{
	return vma->vm_ops && vma->vm_ops->page_mkwrite == ulpf_guarded_mkwrite;
}

/*
 * Keeps faults in guarded mappings of a range out until the mmap lock, which is held for writing, is
 * given back. (Where faults take the mmap lock, that does it.)
 */
void ulpf_lock_mappings(struct ulpf_space *space, unsigned long addr, unsigned long end)
{
	struct vm_area_struct *vma;

	for (; addr < end && (vma = find_vma(space->mm, addr)) && vma->vm_start < end; addr = vma->vm_end)
		if (ulpf_guards(space, vma))
			ulpf_vma_lock(vma);
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
		space->guard_ops.fault = ulpf_guarded_fault;
		space->guard_ops.page_mkwrite = ulpf_guarded_mkwrite;
		space->guard_ops.map_pages = no_neighbours;
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
