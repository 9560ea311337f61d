// SPDX-License-Identifier: MIT OR Apache-2.0
// Linux in system-call emulation, with a remote port that can tell of hits.

#ifndef __ULPF_WORKLOAD_HH__
#define __ULPF_WORKLOAD_HH__

#include <string>

#include "arch/x86/linux/se_workload.hh"
#include "params/UlpfEmuLinux.hh"

namespace gem5
{
namespace ulpf
{

struct Hit;
class UserTLB;

class Workload : public X86ISA::EmuLinux
{
  public:
    PARAMS(UlpfEmuLinux);
    Workload(const Params &p);

    // The processor's data TLB says so when it starts.
    void hearOf(UserTLB *from) { tlb = from; }

    void registerThreadContext(ThreadContext *tc) override;
    // Hits of the kernel's own accesses are reported when the call is done.
    void syscall(ThreadContext *tc) override;

    // Stops the program between two instructions, if a debugger is there: after the one that is being
    // completed, and now.
    void tell(ThreadContext *tc, const Hit &hit);
    void tellNow(ThreadContext *tc, const Hit &hit);
    // SIGSEGV, for which SE mode has no handlers: a debugger sees it once, before the instruction; then
    // the simulation ends.
    void signal(ThreadContext *tc, const std::string &why);

  private:
    UserTLB *tlb = nullptr;
    // The instruction whose signal the debugger has seen.
    Addr seenPc = 0;
    Tick seenCount = 0;
};

} // namespace ulpf
} // namespace gem5

#endif // __ULPF_WORKLOAD_HH__
