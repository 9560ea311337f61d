// SPDX-License-Identifier: MIT OR Apache-2.0
// Linux in system-call emulation, with a remote port that can tell of hits.

#ifndef __ULPF_WORKLOAD_HH__
#define __ULPF_WORKLOAD_HH__

#include "arch/x86/linux/se_workload.hh"
#include "params/UlpfEmuLinux.hh"

namespace gem5
{
namespace ulpf
{

struct Hit;

class Workload : public X86ISA::EmuLinux
{
  public:
    PARAMS(UlpfEmuLinux);
    Workload(const Params &p);

    void registerThreadContext(ThreadContext *tc) override;

    // Stops the program between two instructions, if a debugger is there.
    void tell(ThreadContext *tc, const Hit &hit);
};

} // namespace ulpf
} // namespace gem5

#endif // __ULPF_WORKLOAD_HH__
