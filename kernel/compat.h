/* SPDX-License-Identifier: GPL-2.0 */
/* Differences between the supported kernel versions, in one place. */
#ifndef _ULPF_COMPAT_H
#define _ULPF_COMPAT_H

#include <linux/fcntl.h>
#include <linux/ftrace.h>
#include <linux/mm.h>
#include <linux/sched.h>
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
 * Kernels that handle faults under the mapping's lock alone. A fault that cannot be decided there is retried
 * with the mmap lock. A change of state that faults read locks the mapping, too.
 */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 4, 0)
#define ULPF_FAULT_WITHOUT_MMAP_LOCK FAULT_FLAG_VMA_LOCK
#define ulpf_vma_lock vma_start_write
static inline vm_fault_t ulpf_take_mmap_lock(struct vm_fault *vmf)
{
	vma_end_read(vmf->vma);
	return VM_FAULT_RETRY;
}
#else
#define ULPF_FAULT_WITHOUT_MMAP_LOCK 0
static inline void ulpf_vma_lock(struct vm_area_struct *vma)
{
}

static inline vm_fault_t ulpf_take_mmap_lock(struct vm_fault *vmf)
{
	return 0;
}
#endif

/* Where an entry says that its page was written. */
#ifdef _PAGE_SAVED_DIRTY
#define ULPF_PAGE_DIRTY (_PAGE_DIRTY | _PAGE_SAVED_DIRTY)
#else
#define ULPF_PAGE_DIRTY _PAGE_DIRTY
#endif

/* Threads of a program that never leave the kernel, so that what they have for registers means nothing. */
#ifdef PF_USER_WORKER
#define ULPF_WORKER (PF_IO_WORKER | PF_USER_WORKER)
#else
#define ULPF_WORKER PF_IO_WORKER
#endif

/* They take a map_pages for a sign that ->fault can do without the mmap lock. */
#define ULPF_NEEDS_MAP_PAGES (LINUX_VERSION_CODE >= KERNEL_VERSION(6, 6, 0))

/* Argument of a traced function, and the address where it continues. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 2, 0)
#define ulpf_argument ftrace_regs_get_argument
#define ulpf_go_on_at ftrace_regs_set_instruction_pointer
#else
#define ulpf_argument(fregs, n) regs_get_kernel_argument(&(fregs)->regs, n)
#define ulpf_go_on_at ftrace_instruction_pointer_set
#endif

/* Seals the store against execution as a program, for good. (Older kernels have no vm.memfd_noexec.) */
#ifdef F_SEAL_EXEC
#define ULPF_SEALS F_SEAL_EXEC
#else
#define ULPF_SEALS 0
#endif

#endif /* _ULPF_COMPAT_H */
