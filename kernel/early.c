// SPDX-License-Identifier: GPL-2.0
/*
 * The shorter way to an upcall, where the kernel can trace functions.
 *
 * Between handle_mm_fault() and ->fault (or ->page_mkwrite) lie some 600 instructions. All of them
 * maintain the page table, which an access that goes to the handler does not need. With ftrace, as
 * live patches use it, a function of ours is called at the entry of a kernel function and may change
 * where execution continues. Ours looks at the mapping, and does nothing unless that is guarded. If
 * the program's access is forbidden, the thread enters its handler, and handle_mm_fault() is skipped.
 *
 * This is only a short cut. A fault that is not seen here reaches ->fault, with the same result:
 * without ftrace, with kernel.ftrace_enabled=0, or if another tracer has taken handle_mm_fault(). All
 * other page faults of the machine pay some 50 instructions for the short cut. A user with access to
 * the device must not impose that on others, so the administrator enables it (the parameter `early`).
 * The function is then traced only while some space has a handler, and for IDLE longer, because
 * removing the trace is slow.
 */
#include <linux/ftrace.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/mutex.h>
#include <linux/workqueue.h>

#include "compat.h"
#include "ulpf_internal.h"
#include "upcall.h"

#ifdef CONFIG_DYNAMIC_FTRACE_WITH_ARGS

#define IDLE (10 * HZ)

/* Replaces handle_mm_fault() when the upcall has been made; its caller has nothing left to do. */
static notrace vm_fault_t done(void)
{
	return VM_FAULT_NOPAGE;
}

/* A fault in guarded memory. The same locks are held as in ->fault. */
static __always_inline notrace bool upcall(struct vm_area_struct *vma, unsigned long addr,
					   unsigned int flags, struct pt_regs *regs)
{
	struct ulpf_space *space = ulpf_space_of(vma);
	struct ulpf_region *region;
	unsigned int permission;

	if (!regs || vma->vm_mm != space->mm || !ulpf_by_program(space, flags))
		return false;
	region = ulpf_region(space, addr);
	if (!region || region->guarded)
		return false;
	permission = ulpf_permission(region, ulpf_index(addr));
	return ulpf_forbids(permission, flags & FAULT_FLAG_WRITE) &&
	       ulpf_upcall(space, regs, addr, ulpf_info(flags) | permission << ULPF_INFO_PERM_SHIFT);
}

/* handle_mm_fault(vma, addr, flags, regs) is about to begin. */
static notrace void look(unsigned long ip, unsigned long parent_ip, struct ftrace_ops *ops,
			 struct ftrace_regs *fregs)
{
	struct vm_area_struct *vma = (void *)ulpf_argument(fregs, 0);

	if (likely(!vma->vm_ops || vma->vm_ops->fault != ulpf_guarded_fault))
		return;
	if (upcall(vma, ulpf_argument(fregs, 1), ulpf_argument(fregs, 2), (void *)ulpf_argument(fregs, 3)))
		ulpf_go_on_at(fregs, (unsigned long)done);
}

static struct ftrace_ops ops = {
	.func = look,
	.flags = FTRACE_OPS_FL_IPMODIFY,
};

/* Whether it is wanted, for how many spaces with handlers, and whether @ops is registered. */
static DEFINE_MUTEX(lock);
static bool early;
static unsigned int users;
static bool there;

static void put_there(void)
{
	int error = ftrace_set_filter_ip(&ops, (unsigned long)handle_mm_fault, 0, 0);

	lockdep_assert_held(&lock);
	if (!error) {
		error = register_ftrace_function(&ops);
		if (error)
			ftrace_set_filter_ip(&ops, (unsigned long)handle_mm_fault, 1, 0);
	}
	there = !error;
	if (error)
		pr_info_once("ulpf: handle_mm_fault cannot be traced (%d): upcalls take the long way\n", error);
}

static void take_away(void)
{
	lockdep_assert_held(&lock);
	if (there)
		unregister_ftrace_function(&ops);
	there = false;
}

static void take_away_idle(struct work_struct *work)
{
	mutex_lock(&lock);
	if (!users)
		take_away();
	mutex_unlock(&lock);
}

static DECLARE_DELAYED_WORK(idle, take_away_idle);

/* A space gets a handler. No memory lock may be held. */
void ulpf_early_want(struct ulpf_space *space)
{
	mutex_lock(&lock);
	if (!space->early) {
		space->early = true;
		users++;
		if (early && !there)
			put_there();
	}
	mutex_unlock(&lock);
}

/* It ends. */
void ulpf_early_forget(struct ulpf_space *space)
{
	if (!space->early)
		return;
	mutex_lock(&lock);
	if (!--users)
		mod_delayed_work(system_long_wq, &idle, IDLE);
	mutex_unlock(&lock);
}

/* When the module is loaded, and whenever root writes to /sys/module/ulpf/parameters/early. */
static int set_early(const char *text, const struct kernel_param *param)
{
	int error;

	mutex_lock(&lock);
	error = param_set_bool(text, param);
	if (!early)
		take_away();
	else if (users && !there)
		put_there();
	mutex_unlock(&lock);
	return error;
}

static const struct kernel_param_ops early_operations = {
	.flags = KERNEL_PARAM_OPS_FL_NOARG,
	.set = set_early,
	.get = param_get_bool,
};
module_param_cb(early, &early_operations, &early, 0644);
MODULE_PARM_DESC(early, "bool: upcalls before the page table is looked at, by ftrace; each page fault of the machine pays for it (off)");

void ulpf_early_exit(void)
{
	cancel_delayed_work_sync(&idle);
	mutex_lock(&lock);
	take_away();
	mutex_unlock(&lock);
	ftrace_free_filter(&ops);
}

#else

void ulpf_early_want(struct ulpf_space *space)
{
}

void ulpf_early_forget(struct ulpf_space *space)
{
}

void ulpf_early_exit(void)
{
}

#endif
