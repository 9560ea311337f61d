// SPDX-License-Identifier: MIT OR Apache-2.0
// /dev/ulpf: ULPF_QUERY, ULPF_HANDLER, ULPF_APPLY and ULPF_BATCH with ULPF_OP_SET and ULPF_OP_SYNC. The rest
// of uapi/ulpf.h is not claimed by the feature bits and refused as Linux refuses it. Mappings are plain
// memory: permissions belong to addresses, and there is no alias.

#ifndef __ULPF_DRIVER_HH__
#define __ULPF_DRIVER_HH__

#include <vector>

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
    int query(PortProxy &memory, Addr buf);
    int handler(ThreadContext *tc, PortProxy &memory, Addr buf);
    int apply(const Op &op);
    int batch(PortProxy &memory, Addr buf);

    std::vector<UserTLB *> tlbs;
};

} // namespace ulpf
} // namespace gem5

#endif // __ULPF_DRIVER_HH__
