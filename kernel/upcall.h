/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Entering the handler: the frame on the user's stack, and the registers. A program may make
 * forbidden stores in a loop, so this common case is straight code here, and rare cases are in
 * fault.c.
 */
#ifndef _ULPF_UPCALL_H
#define _ULPF_UPCALL_H

#include <linux/sched/signal.h>
#include <linux/uaccess.h>

#include <asm/processor-flags.h>
#include <asm/ptrace.h>
#include <asm/segment.h>

#include "ulpf_internal.h"

static __always_inline unsigned long ulpf_plain_place(unsigned long sp)
{
	return round_down(sp - ULPF_RED_ZONE - sizeof(struct ulpf_frame), 16);
}

/* Where the frame would begin on the alternate signal stack; 0 without one, or without room. */
static __always_inline unsigned long ulpf_sigstack_place(unsigned long sp)
{
	unsigned long base = current->sas_ss_sp, length = current->sas_ss_size;

	if (likely(sp <= base || sp - base > length))
		return length ? round_down(base + length, 16) - sizeof(struct ulpf_frame) : 0;
	if (sp - base < ULPF_STACK_MIN)
		return 0;
	return ulpf_plain_place(sp);
}

/* No page fault may happen here: the mmap lock is held. */
static __always_inline int ulpf_frame_write(struct ulpf_frame __user *to, const struct ulpf_space *space,
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

static __always_inline void ulpf_enter(struct ulpf_space *space, struct pt_regs *regs, unsigned long place)
{
	regs->ip = space->entry;
	regs->sp = place;
	regs->cs = __USER_CS;
	regs->ss = __USER_DS;
	/* As for a signal handler. */
	regs->flags &= ~(X86_EFLAGS_TF | X86_EFLAGS_DF | X86_EFLAGS_RF | X86_EFLAGS_AC | X86_EFLAGS_NT);
	ulpf_count(space, ULPF_COUNT_UPCALLS);
}

/**
 * ulpf_upcall - has the thread go on in the handler, in the usual case
 * @space: The space that has the handler
 * @regs: Of the program, which the fault has interrupted
 * @addr: First byte that is forbidden
 * @info: ULPF_INFO_*
 *
 * Return: false if the thread did not enter the handler. The reason is no handler, an exception
 * stack of the thread, no room for the frame, or memory of the frame that is not present.
 */
static __always_inline bool ulpf_upcall(struct ulpf_space *space, struct pt_regs *regs,
					unsigned long addr, u64 info)
{
	unsigned long place;

	if (unlikely(!space->entry))
		return false;
	if (space->sigstack) {
		info |= ULPF_INFO_STACK;
		place = ulpf_sigstack_place(regs->sp);
	} else {
		place = likely(!READ_ONCE(space->threads_count)) ? ulpf_plain_place(regs->sp) : 0;
	}
	if (unlikely(!place || ulpf_frame_write((struct ulpf_frame __user *)place, space, regs, addr, info)))
		return false;
	ulpf_enter(space, regs, place);
	return true;
}

/* ULPF_INFO_* bits of an access, for frames and events. */
static __always_inline u32 ulpf_info(unsigned int fault_flags)
{
	return (fault_flags & FAULT_FLAG_WRITE ? ULPF_INFO_WRITE : 0) |
	       (fault_flags & FAULT_FLAG_INSTRUCTION ? ULPF_INFO_FETCH : 0);
}

#endif /* _ULPF_UPCALL_H */
