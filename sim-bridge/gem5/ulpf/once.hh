// SPDX-License-Identifier: MIT OR Apache-2.0
// Write-once (thesis, section 3.2.3): a handler that just returns has permitted the access this one time.
//
//   bit        a bit in the TLB's entry, set before the handler runs; the next access takes it. An
//              instruction with two addresses (MOVUPS is two stores) never ends.
//   thesis     Figure 3.5: while the bit is set other addresses pass, the one that faulted passes and
//              takes it. A read-modify-write, which touches one address twice, never ends.
//   corrected  the instruction and all addresses at which it has faulted so far pass, while that
//              instruction is executed once. Each repetition adds an address, so every one ends.

#ifndef __ULPF_ONCE_HH__
#define __ULPF_ONCE_HH__

#include <set>
#include <string>
#include <vector>

#include "base/types.hh"

namespace gem5
{
namespace ulpf
{

enum class Rule { Bit, Thesis, Corrected };

// false: no rule is called so.
bool ruleOf(const std::string &name, Rule &rule);

// The handlers that run on one hardware thread, and what the last one that returned has permitted.
class Once
{
  public:
    // Source of an access: `count` distinguishes executions of an instruction.
    struct Who
    {
        Addr pc;
        Tick count;
    };

    // The frame of the innermost handler that runs; 0: none does.
    Addr frame() const;
    // When the outermost was entered, if one runs.
    Tick entered() const { return faults.front().entered; }

    bool permits(const Who &who, Addr addr) const;
    void faulted(const Who &who, Addr addr, Addr frame, Tick now);
    // Back to `ip`. `slack` instructions may be counted before the one there begins. True: no handler
    // runs any more.
    bool returned(Addr ip, Tick count, Tick slack);

    // Figure 3.5's register.
    Addr saved = 0;

  private:
    struct Fault
    {
        Addr pc;
        Addr frame;
        Tick entered;
        std::set<Addr> addrs;
        bool running = true;
        // The instruction counts at which it may be repeated.
        Tick from = 0, to = 0;
    };

    static bool again(const Fault &fault, const Who &who);

    std::vector<Fault> faults;
};

} // namespace ulpf
} // namespace gem5

#endif // __ULPF_ONCE_HH__
