// SPDX-License-Identifier: GPL-2.0
/*
 * Accesses a program's memory as parts of the kernel do that a simulated machine does not have. These are a
 * device with page faults of its own (IOMMU SVA: iommu_sva_handle_iopf()) and kernel threads that borrow an
 * mm. For tests only.
 */
#include <linux/completion.h>
#include <linux/err.h>
#include <linux/highmem.h>
#include <linux/kthread.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/sched/mm.h>
#include <linux/uaccess.h>
#include <linux/version.h>
#include <linux/workqueue.h>

#include "reach.h"

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 5, 0)
#define pages_remote(mm, addr, flags, page) get_user_pages_remote(mm, addr, 1, flags, page, NULL, NULL)
#else
#define pages_remote(mm, addr, flags, page) get_user_pages_remote(mm, addr, 1, flags, page, NULL)
#endif

struct work {
	struct work_struct work;
	struct completion done;
	struct mm_struct *mm;
	struct reach *reach;
};

/* As drivers/iommu does it: without registers, and on another task's mm. */
static unsigned int fault(struct mm_struct *mm, const struct reach *reach)
{
	unsigned int flags = (reach->remote ? FAULT_FLAG_REMOTE : 0) | (reach->user ? FAULT_FLAG_USER : 0) |
			     (reach->write ? FAULT_FLAG_WRITE : 0);
	struct vm_area_struct *vma;
	vm_fault_t result = VM_FAULT_SIGSEGV;

	mmap_read_lock(mm);
	vma = find_vma(mm, reach->addr);
	if (vma && vma->vm_start <= reach->addr)
		result = handle_mm_fault(vma, reach->addr, flags, NULL);
	mmap_read_unlock(mm);
	return result;
}

static int pages(struct mm_struct *mm, struct reach *reach)
{
	struct page *page;
	u8 *at;
	long got;

	mmap_read_lock(mm);
	got = pages_remote(mm, reach->addr, reach->write ? FOLL_WRITE : 0, &page);
	mmap_read_unlock(mm);
	if (got != 1)
		return got < 0 ? -got : EFAULT;
	at = kmap_local_page(page);
	if (reach->write)
		at[offset_in_page(reach->addr)] = reach->byte;
	else
		reach->byte = at[offset_in_page(reach->addr)];
	kunmap_local(at);
	if (reach->write)
		set_page_dirty_lock(page);
	put_page(page);
	return 0;
}

static int fixup(struct mm_struct *mm, const struct reach *reach)
{
	bool unlocked = false;
	int error;

	mmap_read_lock(mm);
	error = fixup_user_fault(mm, reach->addr, reach->write ? FAULT_FLAG_WRITE : 0, &unlocked);
	mmap_read_unlock(mm);
	return -error;
}

static void reach_in(struct work_struct *at)
{
	struct work *work = container_of(at, struct work, work);
	struct reach *reach = work->reach;

	reach->result = reach->how == REACH_FAULT ? fault(work->mm, reach) :
			reach->how == REACH_PAGES ? pages(work->mm, reach) : fixup(work->mm, reach);
	complete(&work->done);
}

static int borrow(void *data)
{
	struct work *work = data;
	struct reach *reach = work->reach;
	u8 __user *addr = (u8 __user *)reach->addr;
	bool failed;

	kthread_use_mm(work->mm);
	failed = reach->write ? copy_to_user(addr, &reach->byte, 1) : copy_from_user(&reach->byte, addr, 1);
	kthread_unuse_mm(work->mm);
	reach->result = failed ? EFAULT : 0;
	complete(&work->done);
	/* The module's code is not to go under it. */
	while (!kthread_should_stop())
		schedule_timeout_interruptible(1);
	return 0;
}

static long reach_ioctl(struct file *file, unsigned int command, unsigned long arg)
{
	struct reach reach;
	struct work work = { .mm = current->mm, .reach = &reach };
	struct task_struct *thread;

	if (command != REACH)
		return -ENOTTY;
	if (copy_from_user(&reach, (void __user *)arg, sizeof(reach)))
		return -EFAULT;
	init_completion(&work.done);
	if (reach.how == REACH_BORROW) {
		thread = kthread_run(borrow, &work, "ulpf-reach");
		if (IS_ERR(thread))
			return PTR_ERR(thread);
		wait_for_completion(&work.done);
		kthread_stop(thread);
	} else {
		INIT_WORK_ONSTACK(&work.work, reach_in);
		queue_work(system_long_wq, &work.work);
		wait_for_completion(&work.done);
		flush_work(&work.work);
		destroy_work_on_stack(&work.work);
	}
	return copy_to_user((void __user *)arg, &reach, sizeof(reach)) ? -EFAULT : 0;
}

static const struct file_operations reach_fops = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = reach_ioctl,
};

static struct miscdevice reach_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "ulpf-reach",
	.mode = 0666,
	.fops = &reach_fops,
};

module_misc_device(reach_device);

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Reaches into programs' memory, for tests of ulpf");
