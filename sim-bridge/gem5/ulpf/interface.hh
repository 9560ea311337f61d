// SPDX-License-Identifier: MIT OR Apache-2.0
// Interface between a program and the machine. The device's numbers are those of
// kernel/include/uapi/ulpf.h; sim-bridge/tests/gem5.rs has the compiler compare them. The magic page takes
// the place of instructions, because these cannot be added to gem5 from outside its tree.
//
//     store to MAGIC + OP_ULIRET    rsp is the frame that the handler was entered with: back to the program
//     store to MAGIC + OP_SET_RO    rax: an address; this TLB's entry for its page forbids stores
//     store to MAGIC + OP_SET_RW    rax: an address; this TLB's entry for its page forbids nothing
//     store to MAGIC + OP_CR18      rax: the handler
//     load of  MAGIC + CR17         the address that faulted

#ifndef __ULPF_INTERFACE_HH__
#define __ULPF_INTERFACE_HH__

#include "base/types.hh"

namespace gem5
{
namespace ulpf
{

// Above the lowest address that SE mode's mmap() begins at; nothing is ever mapped there.
constexpr Addr MAGIC = 0x7ffff7fff000ULL;
constexpr Addr PAGE = 4096;
constexpr Addr USER_END = 1ULL << 47;

enum Offset : Addr
{
    OP_ULIRET = 0x08,
    OP_SET_RO = 0x10,
    OP_SET_RW = 0x18,
    OP_CR18 = 0x20,
    CR17 = 0x40,
};

enum Permission : uint8_t { RW = 0, RO = 1, EXE = 2, NONE = 3 };

constexpr Addr
pageOf(Addr addr)
{
    return addr & ~(PAGE - 1);
}

constexpr bool
forbids(Permission permission, bool store)
{
    return permission != RW && (store || permission != RO);
}

// struct ulpf_frame, below the red zone.
struct Frame
{
    uint64_t addr, info, cookie, ip, cs, flags, sp, ss;
};
static_assert(sizeof(Frame) == 64, "the frame of uapi/ulpf.h");

constexpr Addr RED_ZONE = 128;
constexpr uint64_t INFO_WRITE = 1;
constexpr int INFO_PERM_SHIFT = 8;

// struct ulpf_query, ulpf_handler, ulpf_op, ulpf_batch, ulpf_page, ulpf_counts.
struct Query
{
    uint32_t size, flags, version, machine;
    uint64_t features;
    uint32_t batch_max, ring_max;
};

struct Handler
{
    uint32_t size, flags;
    uint64_t entry, cookie;
};

struct Op
{
    uint32_t op, flags;
    uint64_t addr, length, arg;
};

struct Batch
{
    uint32_t size, flags;
    uint64_t ops;
    uint32_t count, op_size, done, reserved;
};

struct Page
{
    uint32_t size, flags;
    uint64_t addr;
    uint32_t permission, guard, state, reserved;
};

struct Counts
{
    uint32_t size, flags;
    uint64_t upcalls, kernel_reads, kernel_writes, guards, unhandled,
        undelivered, changes, flushes;
};

constexpr unsigned IOC_QUERY = 0xc020de20, IOC_HANDLER = 0x4018de21,
                   IOC_STACK = 0x4018de22, IOC_APPLY = 0x4020de23,
                   IOC_BATCH = 0xc020de24, IOC_RING = 0x4018de25,
                   IOC_LOOKUP = 0xc020de26, IOC_COUNTS = 0xc048de27,
                   IOC_POLICY = 0x4008de28, IOC_STORE = 0xde29;
constexpr uint32_t OP_SET = 1, OP_SYNC = 2, OP_GUARD = 3, OP_BIND = 4,
                   OP_UNBIND = 5, BATCH_MAX = 65536;
constexpr uint32_t VERSION = 1, MACHINE_GEM5 = 3;
constexpr uint32_t HANDLER_REPLACE = 1, HANDLER_ONCE = 2,
                   HANDLER_SIGSTACK = 4;
constexpr uint32_t PAGE_GUARDED = 1, PAGE_BOUND = 2;
constexpr uint64_t FEATURE_READ = 1 << 0, FEATURE_PLI_LOOSEN = 1 << 2,
                   FEATURE_ONCE = 1 << 4;

constexpr uint64_t STORE_SIZE = 1ULL << 47, PLI_SIZE = 65536 * PAGE;
constexpr Addr REGION = 128;
constexpr Addr PREFIX = 1ULL << 21;

} // namespace ulpf
} // namespace gem5

#endif // __ULPF_INTERFACE_HH__
