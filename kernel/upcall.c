// SPDX-License-Identifier: GPL-2.0
/*
 * Entering the handler: who made an access, the frame, exception stacks.
 */
#include <linux/pid.h>
#include <linux/sched/signal.h>
#include <linux/sched/task_stack.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include <asm/processor-flags.h>
#include <asm/ptrace.h>
#include <asm/segment.h>

#include "compat.h"
#include "ulpf_internal.h"

/*
 * Program or kernel?
 *
 * ->fault is told (FAULT_FLAG_USER), ->page_mkwrite is not: its flags have been
 * overwritten. What helps there:
 *
 *   - In a system call, or in an interrupt, orig_ax is not -1: the kernel.
 *   - In an exception of user mode it is -1. Either this is the fault of the program
 *     itself, or a fault of the kernel on its way back from some exception or from
 *     sigreturn: it writes a signal frame, say. The kernel's fault lies deeper on the
 *     stack, by a whole set of registers at least. The fault of the program goes from
 *     the top of the stack to struct vm_fault by one path of calls in a given kernel,
 *     so its depth is a constant, which ->fault learns.
 *
 * As long as it is not known, or if it turns out not to be constant, page_mkwrite takes
 * the page away, and has ->fault decide.
 */
#define DEPTH_UNKNOWN	0UL
#define DEPTH_VARIES	(~0UL)

static unsigned long user_depth __read_mostly;

static unsigned long depth_of(const struct vm_fault *vmf)
{
	return (unsigned long)task_pt_regs(current) - (unsigned long)vmf;
}

void ulpf_learn(const struct vm_fault *vmf)
{
	unsigned long depth = depth_of(vmf), known = READ_ONCE(user_depth);

	if (likely(depth == known || known == DEPTH_VARIES))
		return;
	WRITE_ONCE(user_depth, known == DEPTH_UNKNOWN ? depth : DEPTH_VARIES);
}

enum ulpf_who ulpf_who(const struct vm_fault *vmf)
{
	unsigned long known;

	if (vmf->vma->vm_mm != current->mm || current->flags & (PF_KTHREAD | PF_IO_WORKER))
		return ULPF_KERNEL;
	if ((long)task_pt_regs(current)->orig_ax != -1)
		return ULPF_KERNEL;
	known = READ_ONCE(user_depth);
	if (unlikely(known == DEPTH_UNKNOWN || known == DEPTH_VARIES))
		return ULPF_UNKNOWN;
	return depth_of(vmf) == known ? ULPF_USER : ULPF_KERNEL;
}

/* Where the frame would begin; 0 if there is no room. */
static unsigned long frame_place(const struct ulpf_thread *thread, unsigned long sp, u64 *info)
{
	if (thread && thread->length) {
		*info |= ULPF_INFO_STACK;
		if (sp - thread->base >= thread->length)
			return thread->base + thread->length - sizeof(struct ulpf_frame);
		if (sp - thread->base < ULPF_STACK_MIN)
			return 0;
	}
	return round_down(sp - ULPF_RED_ZONE - sizeof(struct ulpf_frame), 16);
}

/* The same on the alternate signal stack. */
static unsigned long sigstack_place(unsigned long sp, u64 *info)
{
	unsigned long base = current->sas_ss_sp, length = current->sas_ss_size;

	*info |= ULPF_INFO_STACK;
	if (sp <= base || sp - base > length)
		return round_down(base + length, 16) - sizeof(struct ulpf_frame);
	if (sp - base < ULPF_STACK_MIN)
		return 0;
	return round_down(sp - ULPF_RED_ZONE - sizeof(struct ulpf_frame), 16);
}

/* No page fault may happen here: the mmap lock is held. */
static __always_inline int frame_write(struct ulpf_frame __user *to, const struct ulpf_space *space,
				       const struct pt_regs *regs, unsigned long addr, u64 info)
{
	pagefault_disable();
	if (!user_write_access_begin(to, sizeof(*to)))
		goto fault_enabled;
	unsafe_put_user(addr, &to->addr, fault);
	unsafe_put_user(info, &to->info, fault);
	unsafe_put_user(space->cookie, &to->cookie, fault);
	unsafe_put_user(regs->ip, &to->ip, fault);
	unsafe_put_user((u64)regs->cs, &to->cs, fault);
	unsafe_put_user(regs->flags, &to->flags, fault);
	unsafe_put_user(regs->sp, &to->sp, fault);
	unsafe_put_user((u64)regs->ss, &to->ss, fault);
	user_write_access_end();
	pagefault_enable();
	return 0;
fault:
	user_write_access_end();
fault_enabled:
	pagefault_enable();
	return -EFAULT;
}

static bool is_guarded(unsigned long addr)
{
	struct vm_area_struct *vma = find_vma(current->mm, addr);

	return vma && vma->vm_start <= addr && ulpf_is_guarded(vma);
}

static vm_fault_t undelivered(struct ulpf_space *space, struct vm_fault *vmf, u32 info)
{
	ulpf_count(space, ULPF_COUNT_UNDELIVERED);
	ulpf_event(space, ULPF_EVENT_UNDELIVERED, vmf->real_address, info, true);
	return VM_FAULT_SIGSEGV;
}

/**
 * ulpf_upcall - has the thread go on in the handler
 * @space: whose handler
 * @vmf: the fault, which current made in user mode
 * @info: ULPF_INFO_*
 *
 * Return: what the fault is to return.
 */
vm_fault_t ulpf_upcall(struct ulpf_space *space, struct vm_fault *vmf, u32 info)
{
	struct pt_regs *regs = task_pt_regs(current);
	struct ulpf_thread *thread = NULL;
	unsigned long place;
	u64 told = info;

	if (unlikely(!space->entry)) {
		ulpf_count(space, ULPF_COUNT_UNHANDLED);
		ulpf_event(space, ULPF_EVENT_UNHANDLED, vmf->real_address, info, true);
		return VM_FAULT_SIGSEGV;
	}
	if (space->sigstack) {
		if (!current->sas_ss_size)
			return VM_FAULT_SIGSEGV;
		place = sigstack_place(regs->sp, &told);
	} else {
		if (READ_ONCE(space->threads_count))
			thread = ulpf_thread(space);
		place = frame_place(thread, regs->sp, &told);
	}
	if (!place)
		return undelivered(space, vmf, info);
	if (unlikely(frame_write((struct ulpf_frame __user *)place, space, regs, vmf->real_address, told))) {
		/* The handler's own memory would fault, and its handler, and so on. */
		if (is_guarded(place) || is_guarded(place + sizeof(struct ulpf_frame) - 1))
			return undelivered(space, vmf, info);
		/* Not there yet, or swapped out. It is brought in on the way back, and the access faults again. */
		if (ulpf_fault_in_later(space, place, sizeof(struct ulpf_frame)))
			return VM_FAULT_OOM;
		return VM_FAULT_NOPAGE;
	}
	regs->ip = space->entry;
	regs->sp = place;
	regs->cs = __USER_CS;
	regs->ss = __USER_DS;
	/* As for a signal handler. */
	regs->flags &= ~(X86_EFLAGS_TF | X86_EFLAGS_DF | X86_EFLAGS_RF | X86_EFLAGS_AC | X86_EFLAGS_NT);
	ulpf_count(space, ULPF_COUNT_UPCALLS);
	return VM_FAULT_NOPAGE;
}

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
	if (mmap_write_lock_killable(space->mm))
		return -EINTR;
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

/* The record of the calling thread, if it has one. Nobody else frees it while the thread lives. */
struct ulpf_thread *ulpf_thread(struct ulpf_space *space)
{
	struct ulpf_thread *thread = xa_load(&space->threads, current->pid);

	return thread && thread->pid == task_pid(current) ? thread : NULL;
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
