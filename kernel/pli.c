// SPDX-License-Identifier: GPL-2.0
/*
 * PLI pages: regions of permissions that user space stores to.
 *
 * The pages are the device's, made when they are first mapped, and stay until the space
 * ends: so a fault may look at them without asking whether they are there. They are
 * charged as locked memory. A forked child does not get them: what it stores there would
 * decide about its parent.
 */
#include <linux/slab.h>

#include "compat.h"
#include "ulpf_internal.h"

#define FIRST (ULPF_MAP_PLI >> PAGE_SHIFT)

static vm_fault_t pli_fault(struct vm_fault *vmf)
{
	struct ulpf_space *space = vmf->vma->vm_file->private_data;
	struct ulpf_pli_page *pli = xa_load(&space->pli, vmf->pgoff - FIRST);

	if (!pli)
		return VM_FAULT_SIGBUS;
	get_page(pli->page);
	vmf->page = pli->page;
	return 0;
}

static const struct vm_operations_struct pli_ops = {
	.fault = pli_fault,
};

static int pli_make(struct ulpf_space *space, unsigned long index)
{
	struct ulpf_pli_page *pli;
	int error;

	if (xa_load(&space->pli, index))
		return 0;
	pli = kzalloc(sizeof(*pli), GFP_KERNEL_ACCOUNT);
	if (!pli)
		return -ENOMEM;
	error = ulpf_charge(space, 1);
	if (error)
		goto free;
	error = -ENOMEM;
	pli->page = alloc_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO);
	if (!pli->page)
		goto uncharge;
	error = xa_err(xa_store(&space->pli, index, pli, GFP_KERNEL_ACCOUNT));
	if (error)
		goto free_page;
	return 0;

free_page:
	__free_page(pli->page);
uncharge:
	ulpf_uncharge(space, 1);
free:
	kfree(pli);
	return error;
}

int ulpf_pli_mmap(struct ulpf_space *space, struct vm_area_struct *vma)
{
	unsigned long index = vma->vm_pgoff - FIRST, i;

	if (index + vma_pages(vma) > ULPF_PLI_PAGES)
		return -EINVAL;
	for (i = 0; i < vma_pages(vma); i++) {
		/* Pages made before a failure stay, and serve the next attempt. */
		int error = pli_make(space, index + i);

		if (error)
			return error;
	}
	ulpf_flags(vma, VM_DONTEXPAND | VM_DONTCOPY, 0);
	vma->vm_ops = &pli_ops;
	return 0;
}

static struct ulpf_pli_page *pli_at(struct ulpf_space *space, unsigned long addr, unsigned long *index)
{
	struct vm_area_struct *vma = find_vma(space->mm, addr);

	if (!vma || vma->vm_start > addr || vma->vm_ops != &pli_ops || vma->vm_file != space->file)
		return NULL;
	*index = vma->vm_pgoff - FIRST + ((addr - vma->vm_start) >> PAGE_SHIFT);
	return xa_load(&space->pli, *index);
}

int ulpf_pli_bind(struct ulpf_space *space, unsigned long addr, unsigned long at)
{
	unsigned int slot = offset_in_page(at) / ULPF_REGION_SIZE;
	struct ulpf_region *region;
	struct ulpf_pli_page *pli;
	unsigned long index;

	if (at % ULPF_REGION_SIZE || !slot)
		return -EINVAL;
	pli = pli_at(space, at, &index);
	if (!pli)
		return -EFAULT;
	region = ulpf_region(space, addr);
	if (region && region->slot)
		return region->pli == index && region->slot == slot ? 0 : -EBUSY;
	if (pli->used & BIT(slot))
		return -EBUSY;
	region = ulpf_region_make(space, addr);
	if (!region)
		return -ENOMEM;
	pli->used |= BIT(slot);
	region->pli = index;
	region->slot = slot;
	region->bits = page_address(pli->page) + slot * ULPF_REGION_SIZE;
	return 0;
}

int ulpf_pli_unbind(struct ulpf_space *space, unsigned long addr)
{
	struct ulpf_region *region = ulpf_region(space, addr);
	struct ulpf_pli_page *pli;

	if (!region || !region->slot)
		return -ENOENT;
	pli = xa_load(&space->pli, region->pli);
	pli->used &= ~BIT(region->slot);
	region->slot = 0;
	memset(region->own, 0, sizeof(region->own));
	region->bits = region->own;
	return 0;
}

void ulpf_pli_free(struct ulpf_space *space)
{
	struct ulpf_pli_page *pli;
	unsigned long index;

	xa_for_each(&space->pli, index, pli) {
		put_page(pli->page);
		kfree(pli);
		cond_resched();
	}
	xa_destroy(&space->pli);
}
