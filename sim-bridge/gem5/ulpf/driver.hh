// SPDX-License-Identifier: MIT OR Apache-2.0
// /dev/ulpf: the calls and mappings of uapi/ulpf.h, without exception stacks, event rings, guard ranges and
// policies, which the feature bits do not claim. There is one space, however often the device is opened.

#ifndef __ULPF_DRIVER_HH__
#define __ULPF_DRIVER_HH__

#include <unordered_map>

#include "params/UlpfDriver.hh"
#include "sim/emul_driver.hh"
#include "ulpf/interface.hh"

namespace gem5
{

class PortProxy;

namespace ulpf
{

class UserTLB;

class Driver : public EmulatedDriver
{
  public:
    PARAMS(UlpfDriver);
    Driver(const Params &p);

    int open(ThreadContext *tc, int mode, int flags) override;
    int ioctl(ThreadContext *tc, unsigned req, Addr buf) override;
    Addr mmap(ThreadContext *tc, Addr start, uint64_t length, int prot,
              int flags, int fd, off_t offset) override;

  private:
    // Offset in the store, or in the PLI pages, to the memory that is there.
    using Frames = std::unordered_map<Addr, Addr>;
    // Address to memory: what was mapped there, if it is still.
    using Mapped = std::unordered_map<Addr, Addr>;

    int query(PortProxy &memory, Addr buf);
    int handler(ThreadContext *tc, PortProxy &memory, Addr buf);
    int apply(ThreadContext *tc, const Op &op);
    int batch(ThreadContext *tc, PortProxy &memory, Addr buf);
    int lookup(ThreadContext *tc, PortProxy &memory, Addr buf);
    int counts(PortProxy &memory, Addr buf);
    bool holds(ThreadContext *tc, const Mapped &mapped, Addr first,
               Addr length) const;

    UserTLB *tlb;
    uint64_t changes = 0;
    Frames store, pli;
    Mapped guarded, regions;
};

} // namespace ulpf
} // namespace gem5

#endif // __ULPF_DRIVER_HH__
