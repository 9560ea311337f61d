// SPDX-License-Identifier: GPL-2.0
/*
 * The registered handler, and threads' exception stacks.
 */
#include <linux/pid.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "ulpf_internal.h"

static int check_entry(unsigned long entry)
{
	struct vm_area_struct *vma;

	if (entry >= TASK_SIZE_MAX)
		return -EFAULT;
	vma = find_vma(current->mm, entry);
	if (!vma || vma->vm_start > entry)
		return -EFAULT;
	return vma->vm_flags & VM_EXEC ? 0 : -EACCES;
}

int ulpf_set_handler(struct ulpf_space *space, const struct ulpf_handler *handler)
{
	int error = 0;

	if (handler->flags & ~(ULPF_HANDLER_REPLACE | ULPF_HANDLER_ONCE | ULPF_HANDLER_SIGSTACK))
		return -EINVAL;
	if (handler->flags & ULPF_HANDLER_ONCE)
		return -EOPNOTSUPP;
	if (!handler->entry && (handler->flags || handler->cookie))
		return -EINVAL;
	if (handler->entry)
		ulpf_early_want(space);
	if (mmap_write_lock_killable(space->mm))
		return -EINTR;
	ulpf_lock_mappings(space, 0, TASK_SIZE_MAX);
	if (!handler->entry)
		error = space->entry ? 0 : -ENOENT;
	else if (space->entry && !(handler->flags & ULPF_HANDLER_REPLACE))
		error = -EBUSY;
	else
		error = check_entry(handler->entry);
	if (!error) {
		space->entry = handler->entry;
		space->cookie = handler->cookie;
		space->sigstack = handler->flags & ULPF_HANDLER_SIGSTACK;
	}
	mmap_write_unlock(space->mm);
	return error;
}

/* The record of the calling thread, if it has one. It is not freed while the thread lives. */
struct ulpf_thread *ulpf_thread(struct ulpf_space *space)
{
	struct ulpf_thread *thread;

	/*
	 * RCU: the record may belong to a dead thread that had the same number, and be freed meanwhile.
	 */
	rcu_read_lock();
	thread = xa_load(&space->threads, current->pid);
	if (thread && thread->pid != task_pid(current))
		thread = NULL;
	rcu_read_unlock();
	return thread;
}

static void thread_forget(struct ulpf_space *space, unsigned long number, struct ulpf_thread *thread)
{
	lockdep_assert_held(&space->threads.xa_lock);
	__xa_erase(&space->threads, number);
	WRITE_ONCE(space->threads_count, space->threads_count - 1);
	put_pid(thread->pid);
	kfree_rcu(thread, rcu);
}

/* Threads do not tell us when they end. */
static void threads_sweep(struct ulpf_space *space)
{
	struct ulpf_thread *thread;
	unsigned long number;

	rcu_read_lock();
	xa_for_each(&space->threads, number, thread) {
		if (!pid_task(thread->pid, PIDTYPE_PID))
			thread_forget(space, number, thread);
	}
	rcu_read_unlock();
	space->threads_sweep = max(64U, 2 * space->threads_count);
}

/* The record of the calling thread, made if need be; NULL without memory. */
struct ulpf_thread *ulpf_thread_make(struct ulpf_space *space)
{
	struct ulpf_thread *thread = ulpf_thread(space), *old;

	if (thread)
		return thread;
	thread = kzalloc(sizeof(*thread), GFP_KERNEL_ACCOUNT);
	if (!thread)
		return NULL;
	thread->pid = get_pid(task_pid(current));
	xa_lock(&space->threads);
	if (space->threads_count >= space->threads_sweep)
		threads_sweep(space);
	/* A dead thread that had the number before. */
	old = xa_load(&space->threads, current->pid);
	if (old)
		thread_forget(space, current->pid, old);
	if (xa_err(__xa_store(&space->threads, current->pid, thread, GFP_KERNEL_ACCOUNT))) {
		xa_unlock(&space->threads);
		put_pid(thread->pid);
		kfree(thread);
		return NULL;
	}
	WRITE_ONCE(space->threads_count, space->threads_count + 1);
	xa_unlock(&space->threads);
	return thread;
}

void ulpf_threads_free(struct ulpf_space *space)
{
	struct ulpf_thread *thread;
	unsigned long number;

	xa_lock(&space->threads);
	xa_for_each(&space->threads, number, thread)
		thread_forget(space, number, thread);
	xa_unlock(&space->threads);
	xa_destroy(&space->threads);
}

int ulpf_set_stack(struct ulpf_space *space, const struct ulpf_stack *stack)
{
	struct ulpf_thread *thread;

	if (stack->flags)
		return -EINVAL;
	if (!stack->length) {
		thread = ulpf_thread(space);
		if (stack->base)
			return -EINVAL;
		if (!thread || !thread->length)
			return -ENOENT;
		thread->length = 0;
		return 0;
	}
	if ((stack->base | stack->length) % 16 || stack->length < ULPF_STACK_MIN)
		return -EINVAL;
	if (!access_ok((void __user *)stack->base, stack->length) || !stack->base)
		return -EFAULT;
	thread = ulpf_thread_make(space);
	if (!thread)
		return -ENOMEM;
	thread->base = stack->base;
	thread->length = stack->length;
	return 0;
}
