// SPDX-License-Identifier: MIT OR Apache-2.0
#include "ulpf/once.hh"

namespace gem5
{
namespace ulpf
{

namespace
{

// Handlers nested deeper than this, or left by longjmp, lose their permits.
constexpr size_t NESTED = 256;

} // anonymous namespace

bool
ruleOf(const std::string &name, Rule &rule)
{
    if (name == "bit")
        rule = Rule::Bit;
    else if (name == "thesis")
        rule = Rule::Thesis;
    else if (name == "corrected")
        rule = Rule::Corrected;
    else
        return false;
    return true;
}

bool
Once::again(const Fault &fault, const Who &who)
{
    return !fault.running && fault.pc == who.pc && who.count >= fault.from &&
        who.count <= fault.to;
}

Addr
Once::frame() const
{
    // Only the last one may have returned.
    for (auto fault = faults.rbegin(); fault != faults.rend(); ++fault) {
        if (fault->running)
            return fault->frame;
    }
    return 0;
}

bool
Once::permits(const Who &who, Addr addr) const
{
    return !faults.empty() && again(faults.back(), who) &&
        faults.back().addrs.count(addr) != 0;
}

void
Once::faulted(const Who &who, Addr addr, Addr frame, Tick now)
{
    if (!faults.empty() && !faults.back().running &&
        !again(faults.back(), who)) {
        // Another instruction, or another execution: what was permitted is over.
        faults.pop_back();
    }
    if (faults.empty() || faults.back().running) {
        if (faults.size() == NESTED)
            faults.erase(faults.begin());
        faults.push_back({who.pc, frame, now, {}});
    }
    Fault &fault = faults.back();
    if (!fault.running)
        fault.entered = now;
    fault.running = true;
    fault.frame = frame;
    fault.addrs.insert(addr);
}

bool
Once::returned(Addr ip, Tick count, Tick slack)
{
    if (!faults.empty() && !faults.back().running)
        faults.pop_back();
    if (faults.empty())
        return false;
    Fault &fault = faults.back();
    const bool last = faults.size() == 1;
    fault.running = false;
    fault.from = count;
    fault.to = count + slack;
    // A handler that has gone elsewhere has taken its permit with it.
    if (fault.pc != ip)
        faults.pop_back();
    return last;
}

} // namespace ulpf
} // namespace gem5
