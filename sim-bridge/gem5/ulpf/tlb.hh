// SPDX-License-Identifier: MIT OR Apache-2.0
// The data TLB: gem5's own translation first (so what the kernel forbids is the kernel's fault), then what
// the user's tables say, then a debugger's watches.

#ifndef __ULPF_TLB_HH__
#define __ULPF_TLB_HH__

#include <string>
#include <unordered_map>
#include <vector>

#include "arch/x86/tlb.hh"
#include "params/UlpfTLB.hh"
#include "ulpf/interface.hh"
#include "ulpf/once.hh"
#include "ulpf/tables.hh"
#include "ulpf/watches.hh"

namespace gem5
{
namespace ulpf
{

class Workload;

// CR17, CR18 and the handlers that run: one for each hardware thread.
struct Context
{
    Addr handler = 0;
    uint64_t cookie = 0;
    Addr faultAddr = 0;
    // ULPF_HANDLER_ONCE: a handler that just returns has permitted the access.
    bool permits = true;
    Once once;
};

class UserTLB : public X86ISA::TLB
{
  public:
    PARAMS(UlpfTLB);
    UserTLB(const Params &p);

    void startup() override;

    Fault translateAtomic(const RequestPtr &req, ThreadContext *tc,
                          BaseMMU::Mode mode) override;
    void translateTiming(const RequestPtr &req, ThreadContext *tc,
                         BaseMMU::Translation *translation,
                         BaseMMU::Mode mode) override;
    // Debuggers', and in a system call the kernel's accesses.
    Fault translateFunctional(const RequestPtr &req, ThreadContext *tc,
                              BaseMMU::Mode mode) override;

    Context &context(ThreadContext *tc);

    // The user's tables. An entry here stays as it is until it is set, forgotten or filled anew: the
    // thesis's incoherence, which setPermission() spares its callers.
    Tables tables;
    bool setPermission(ThreadContext *tc, Addr page, Permission permission);
    Permission permission(ThreadContext *tc, Addr page) const;
    void setEntry(Addr page, Permission permission);
    void forget(Addr page);
    void forgetAll();

    // For the configuration script: `w`, `r`, `rw`; "ok", or why not.
    std::string watch(Addr addr, Addr length, const std::string &kind);
    std::string unwatch(Addr addr, Addr length, const std::string &kind);
    // `name value` lines.
    std::string summary() const;

    // Entries of the program's handler.
    uint64_t upcalls = 0;

    // Around a system call: what it reads and writes is looked at, too.
    void callBegins();
    void callEnds(ThreadContext *tc);

    struct Stats : public statistics::Group
    {
        Stats(statistics::Group *parent);
        statistics::Scalar lookups, misses, faults, hits, silentStores,
                           falsePositives, handlerCycles, unhandled,
                           undelivered;
    } stats;

  private:
    friend class UserFault;
    friend class OpFault;

    // Cost of an access beyond gem5's own translation.
    struct Verdict
    {
        Fault fault = NoFault;
        Cycles delay{0};
    };

    struct Entry
    {
        // Its number plus one; 0: empty.
        Addr page = 0;
        uint64_t used = 0;
        Permission permission = RW;
        // Write-once's bit.
        bool once = false;
    };

    // The last access that was served, to see what belongs to it: the second half of one that crosses
    // a cache line, and the store of a read-modify-write.
    struct Served
    {
        Addr first = 0, next = 0;
        Tick tick = 0, count = 0;
        MicroPC upc = 0;
        bool hit = false;
    };

    Verdict magic(const RequestPtr &req, BaseMMU::Mode mode);
    Verdict translate(const RequestPtr &req, ThreadContext *tc,
                      BaseMMU::Mode mode);
    Verdict check(const RequestPtr &req, ThreadContext *tc,
                  BaseMMU::Mode mode);
    bool refused(const RequestPtr &req, ThreadContext *tc, Addr addr,
                 bool store, Entry &entry);
    void serve(ThreadContext *tc, Addr first, Addr last, bool store,
               bool load, Cycles &delay);
    void handlerLeft(ThreadContext *tc);

    Entry *find(Addr page);
    Entry &lookup(ThreadContext *tc, Addr page, Cycles &delay);

    void settleLater(ThreadContext *tc);
    void settle(ThreadContext *tc);
    void tellOf(ThreadContext *tc);

    const Params &p;
    Rule rule = Rule::Corrected;
    std::unordered_map<ContextID, Context> contexts;
    std::vector<Entry> entries;
    uint64_t clock = 0;

    Watches watches;
    Served served;
    bool settling = false;
    bool inCall = false;
    // Receiver of hits. (Not a parameter: it would be one of the system that contains this object.)
    Workload *workload = nullptr;
};

} // namespace ulpf
} // namespace gem5

#endif // __ULPF_TLB_HH__
