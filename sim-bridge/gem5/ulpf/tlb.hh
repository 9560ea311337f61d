// SPDX-License-Identifier: MIT OR Apache-2.0
// The data TLB: gem5's own translation first (so what the kernel forbids is the kernel's fault), then what
// the user's tables say.

#ifndef __ULPF_TLB_HH__
#define __ULPF_TLB_HH__

#include <list>
#include <set>
#include <string>
#include <unordered_map>

#include "arch/x86/tlb.hh"
#include "params/UlpfTLB.hh"
#include "ulpf/interface.hh"
#include "ulpf/watches.hh"

namespace gem5
{
namespace ulpf
{

class Workload;

// CR17, CR18 and the state of write-once: one for each hardware thread.
struct Context
{
    Addr handler = 0;
    uint64_t cookie = 0;
    Addr faultAddr = 0;
    unsigned depth = 0;
    Tick entered = 0;
    // Write-once, the corrected rule: while this instruction is executed (the count tells that it is the
    // same execution) all addresses pass at which it has faulted.
    bool armed = false;
    Addr armedPc = 0;
    Tick armedCount = 0;
    std::set<Addr> armedAddrs;
};

class UserTLB : public X86ISA::TLB
{
  public:
    PARAMS(UlpfTLB);
    UserTLB(const Params &p);

    Fault translateAtomic(const RequestPtr &req, ThreadContext *tc,
                          BaseMMU::Mode mode) override;
    void translateTiming(const RequestPtr &req, ThreadContext *tc,
                         BaseMMU::Translation *translation,
                         BaseMMU::Mode mode) override;

    Context &context(ThreadContext *tc);

    // The user's tables. A TLB's entry stays as it is until it is set, or filled anew: the thesis's
    // incoherence, which setPermission() spares its callers.
    void setPermission(Addr page, Permission permission);
    void setEntry(Addr page, Permission permission);

    // For the configuration script: `w`, `r`, `rw`; "ok", or why not.
    std::string watch(Addr addr, Addr length, const std::string &kind);
    std::string unwatch(Addr addr, Addr length, const std::string &kind);
    // `name value` lines.
    std::string summary() const;

    // Where hits are told.
    void tell(Workload *to) { workload = to; }

    struct Stats : public statistics::Group
    {
        Stats(statistics::Group *parent);
        statistics::Scalar lookups, misses, faults, hits, silentStores,
                           falsePositives, handlerCycles;
    } stats;

  private:
    friend class UserFault;
    friend class OpFault;

    // What one access costs beyond gem5's own translation.
    struct Verdict
    {
        Fault fault = NoFault;
        Cycles delay{0};
    };

    Verdict magic(const RequestPtr &req, BaseMMU::Mode mode);
    Verdict check(const RequestPtr &req, ThreadContext *tc,
                  BaseMMU::Mode mode);
    Verdict translate(const RequestPtr &req, ThreadContext *tc,
                      BaseMMU::Mode mode);
    Permission lookup(Addr page, Cycles &delay);
    bool passes(const Context &c, const RequestPtr &req, ThreadContext *tc,
                Addr addr) const;
    void settleLater(ThreadContext *tc);
    void settle(ThreadContext *tc);

    struct Entry
    {
        Addr page;
        Permission permission;
    };

    std::unordered_map<ContextID, Context> contexts;
    std::unordered_map<Addr, Permission> tables;
    // The most recently used first.
    std::list<Entry> entries;
    Watches watches;
    bool settling = false;
    Workload *workload = nullptr;
    const Params &p;
};

} // namespace ulpf
} // namespace gem5

#endif // __ULPF_TLB_HH__
