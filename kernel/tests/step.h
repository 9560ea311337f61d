/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The thesis's write-once rule for programs that cannot decode instructions: the handler
 * returns, the access is made once, and the next one faults again. The page is opened, the
 * processor's trap flag set in the frame, and the trap behind the instruction closes it.
 *
 * For threads that take turns: the page is open for all of them meanwhile.
 */
#ifndef STEP_H
#define STEP_H

#include "test.h"

#include <ucontext.h>

static __thread uintptr_t step_page, step_ip;
static void (*volatile after_step)(uintptr_t page);

static void step_over(struct ulpf_frame *frame)
{
	step_page = frame->addr & ~(PAGE - 1);
	if (set(the_space, (void *)step_page, PAGE, ULPF_RW))
		_exit(3);
	step_ip = frame->ip;
	frame->flags |= 0x100;
}

static void step_done(int number, siginfo_t *info, void *context)
{
	uintptr_t ip = ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];

	(void)number;
	(void)info;
	/* The first traps come in the entry itself, behind its popfq, and when it has returned. */
	if (ip - (uintptr_t)entry < (uintptr_t)put - (uintptr_t)entry)
		return;
	if (ip == step_ip) {
		step_ip = 0;
		return;
	}
	((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] &= ~0x100L;
	if (set(the_space, (void *)step_page, PAGE, ULPF_RO))
		_exit(3);
	if (after_step)
		after_step(step_page);
}

static void step_begin(void)
{
	struct sigaction action = { .sa_sigaction = step_done, .sa_flags = SA_SIGINFO };

	EXPECT_EQ(sigaction(SIGTRAP, &action, NULL), 0);
}

#endif
