/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* /dev/ulpf-reach, of the test machine: parts of the kernel reach into the caller's memory. */
#ifndef REACH_H
#define REACH_H

#include <linux/ioctl.h>
#include <linux/types.h>

/**
 * struct reach - one access (REACH)
 * @how: REACH_*
 * @write: Stores @byte, else loads it
 * @addr: Where
 * @result: Out: of a page fault, VM_FAULT_*; of others, an error number or 0
 * @byte: The byte to store, or the loaded one
 * @user: A page fault is resolved as if user mode had made it
 * @remote: ... and in an mm other than the current one
 */
struct reach {
	__u32 how;
	__u32 write;
	__u64 addr;
	__u32 result;
	__u8 byte;
	__u8 user;
	__u8 remote;
	__u8 reserved;
};

#define REACH_FAULT	0	/* handle_mm_fault() in a work queue, without registers: a device's page fault (SVA) */
#define REACH_BORROW	1	/* a kernel thread that has taken the memory on (kthread_use_mm()): vhost, a gadget */
#define REACH_PAGES	2	/* get_user_pages_remote() in a work queue */
#define REACH_FIXUP	3	/* fixup_user_fault() in a work queue */

#define REACH		_IOWR('u', 1, struct reach)

#endif
