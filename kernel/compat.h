/* SPDX-License-Identifier: GPL-2.0 */
/* What differs between the kernels that we know, in one place. */
#ifndef _ULPF_COMPAT_H
#define _ULPF_COMPAT_H

#include <linux/mm.h>
#include <linux/timer.h>
#include <linux/version.h>

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 1, 0)
#error "ulpf needs Linux 6.1 or later"
#endif

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 3, 0)
/* Debian's 6.1 has them or not, depending on its stable patches; so by names of our own. */
static inline void ulpf_flags(struct vm_area_struct *vma, unsigned long set, unsigned long clear)
{
	vma->vm_flags = (vma->vm_flags | set) & ~clear;
}
#else
static inline void ulpf_flags(struct vm_area_struct *vma, unsigned long set, unsigned long clear)
{
	vm_flags_mod(vma, set, clear);
}
#endif

/*
 * Kernels that fault under a lock of the mapping alone: we decide under the mmap lock,
 * so such a fault comes again with that.
 */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 4, 0)
#define ULPF_FAULT_WITHOUT_MMAP_LOCK FAULT_FLAG_VMA_LOCK
static inline vm_fault_t ulpf_take_mmap_lock(struct vm_fault *vmf)
{
	vma_end_read(vmf->vma);
	return VM_FAULT_RETRY;
}
#else
#define ULPF_FAULT_WITHOUT_MMAP_LOCK 0
static inline vm_fault_t ulpf_take_mmap_lock(struct vm_fault *vmf)
{
	return 0;
}
#endif

#endif /* _ULPF_COMPAT_H */
