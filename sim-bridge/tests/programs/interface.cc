// SPDX-License-Identifier: GPL-2.0-or-later
// What gem5's files say about the device, which the compiler compares with the header of the kernel's module.
#include <cstddef>
#include <cstdint>
#include <ulpf.h>
#include "ulpf/interface.hh"

using namespace gem5::ulpf;

#define NUMBER(ours, name) static_assert((ours) == (name), #name)
#define SAME(name) NUMBER(name, ULPF_##name)
#define CALL(name) NUMBER(IOC_##name, ULPF_##name)
#define SIZE(ours, theirs) static_assert(sizeof(ours) == sizeof(struct theirs), #theirs)
#define FIELD(ours, theirs, field) \
	static_assert(offsetof(ours, field) == offsetof(struct theirs, field) && \
	              sizeof(ours::field) == sizeof(theirs::field), #theirs "." #field)

CALL(QUERY); CALL(HANDLER); CALL(STACK); CALL(APPLY); CALL(BATCH);
CALL(RING); CALL(LOOKUP); CALL(COUNTS); CALL(POLICY); CALL(STORE);
SAME(RW); SAME(RO); SAME(EXE); SAME(NONE);
SAME(OP_SET); SAME(OP_SYNC); SAME(OP_GUARD); SAME(OP_BIND); SAME(OP_UNBIND);
SAME(VERSION); SAME(MACHINE_GEM5); SAME(STORE_SIZE); SAME(RED_ZONE); SAME(INFO_WRITE); SAME(INFO_PERM_SHIFT);
SAME(HANDLER_REPLACE); SAME(HANDLER_ONCE); SAME(HANDLER_SIGSTACK); SAME(PAGE_GUARDED); SAME(PAGE_BOUND);
SAME(FEATURE_READ); SAME(FEATURE_PLI_LOOSEN); SAME(FEATURE_ONCE);
NUMBER(PLI_SIZE, ULPF_PLI_PAGES * PAGE);
NUMBER(REGION, ULPF_REGION_SIZE);
NUMBER(PREFIX, 1ULL << ULPF_REGION_SHIFT);

SIZE(Frame, ulpf_frame);
FIELD(Frame, ulpf_frame, addr); FIELD(Frame, ulpf_frame, info); FIELD(Frame, ulpf_frame, cookie);
FIELD(Frame, ulpf_frame, ip); FIELD(Frame, ulpf_frame, cs); FIELD(Frame, ulpf_frame, flags);
FIELD(Frame, ulpf_frame, sp); FIELD(Frame, ulpf_frame, ss);
SIZE(Query, ulpf_query);
FIELD(Query, ulpf_query, version); FIELD(Query, ulpf_query, machine); FIELD(Query, ulpf_query, features);
FIELD(Query, ulpf_query, batch_max); FIELD(Query, ulpf_query, ring_max);
SIZE(Handler, ulpf_handler);
FIELD(Handler, ulpf_handler, flags); FIELD(Handler, ulpf_handler, entry); FIELD(Handler, ulpf_handler, cookie);
SIZE(Op, ulpf_op);
FIELD(Op, ulpf_op, op); FIELD(Op, ulpf_op, flags); FIELD(Op, ulpf_op, addr); FIELD(Op, ulpf_op, length);
FIELD(Op, ulpf_op, arg);
SIZE(Batch, ulpf_batch);
FIELD(Batch, ulpf_batch, ops); FIELD(Batch, ulpf_batch, count); FIELD(Batch, ulpf_batch, op_size);
FIELD(Batch, ulpf_batch, done); FIELD(Batch, ulpf_batch, reserved);
SIZE(Page, ulpf_page);
FIELD(Page, ulpf_page, addr); FIELD(Page, ulpf_page, permission); FIELD(Page, ulpf_page, guard);
FIELD(Page, ulpf_page, state); FIELD(Page, ulpf_page, reserved);
SIZE(Counts, ulpf_counts);
FIELD(Counts, ulpf_counts, upcalls); FIELD(Counts, ulpf_counts, kernel_reads);
FIELD(Counts, ulpf_counts, kernel_writes); FIELD(Counts, ulpf_counts, guards);
FIELD(Counts, ulpf_counts, unhandled); FIELD(Counts, ulpf_counts, undelivered);
FIELD(Counts, ulpf_counts, changes); FIELD(Counts, ulpf_counts, flushes);
