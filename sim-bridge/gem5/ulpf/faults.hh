// SPDX-License-Identifier: MIT OR Apache-2.0
// How a user-level page fault enters the program's handler, and how the magic page's operations are done.

#ifndef __ULPF_FAULTS_HH__
#define __ULPF_FAULTS_HH__

#include "sim/faults.hh"
#include "ulpf/interface.hh"

namespace gem5
{
namespace ulpf
{

class UserTLB;
class Workload;

class UserFault : public FaultBase
{
  public:
    UserFault(UserTLB *tlb, Addr addr, bool store, Permission permission)
        : tlb(tlb), addr(addr), store(store), permission(permission)
    {}

    FaultName name() const override { return "user-level page fault"; }
    void invoke(ThreadContext *tc, const StaticInstPtr &inst) override;

  private:
    UserTLB *tlb;
    Addr addr;
    bool store;
    Permission permission;
};

class OpFault : public FaultBase
{
  public:
    OpFault(UserTLB *tlb, Addr offset) : tlb(tlb), offset(offset) {}

    FaultName name() const override { return "ULPF operation"; }
    void invoke(ThreadContext *tc, const StaticInstPtr &inst) override;

  private:
    void uliret(ThreadContext *tc);

    UserTLB *tlb;
    Addr offset;
};

// An access that the kernel forbids. SE mode has no signals, and gem5 would abort. Instead this
// reports to the debugger, or ends the program.
class SegFault : public FaultBase
{
  public:
    SegFault(Workload *workload, Addr addr, bool store)
        : workload(workload), addr(addr), store(store)
    {}

    FaultName name() const override { return "segmentation fault"; }
    void invoke(ThreadContext *tc, const StaticInstPtr &inst) override;

  private:
    Workload *workload;
    Addr addr;
    bool store;
};

} // namespace ulpf
} // namespace gem5

#endif // __ULPF_FAULTS_HH__
