// SPDX-License-Identifier: MIT OR Apache-2.0
#include "ulpf/tlb.hh"

#include <algorithm>
#include <memory>

#include "arch/x86/pcstate.hh"
#include "cpu/base.hh"
#include "cpu/thread_context.hh"
#include "debug/Ulpf.hh"
#include "mem/packet_access.hh"
#include "mem/se_translating_port_proxy.hh"
#include "sim/eventq.hh"
#include "sim/process.hh"
#include "ulpf/faults.hh"
#include "ulpf/workload.hh"

namespace gem5
{
namespace ulpf
{

UserTLB::Stats::Stats(statistics::Group *parent)
    : statistics::Group(parent),
      ADD_STAT(lookups, statistics::units::Count::get(),
               "accesses whose user-level permission was looked up"),
      ADD_STAT(misses, statistics::units::Count::get(),
               "of these, not known here: the user's tables were walked"),
      ADD_STAT(faults, statistics::units::Count::get(),
               "user-level page faults"),
      ADD_STAT(hits, statistics::units::Count::get(),
               "accesses to what a debugger watches"),
      ADD_STAT(silentStores, statistics::units::Count::get(),
               "of these, stores that left the value as it was"),
      ADD_STAT(falsePositives, statistics::units::Count::get(),
               "faults of a debugger's watches that were no hits"),
      ADD_STAT(handlerCycles, statistics::units::Cycle::get(),
               "from the first instruction of a handler to ULIRET")
{}

UserTLB::UserTLB(const Params &params)
    : X86ISA::TLB(params), stats(this), p(params)
{
    fatal_if(p.user_entries == 0, "user_entries: a TLB has an entry");
}

Context &
UserTLB::context(ThreadContext *tc)
{
    return contexts[tc->contextId()];
}

void
UserTLB::setEntry(Addr page, Permission permission)
{
    for (auto &entry : entries) {
        if (entry.page == page)
            entry.permission = permission;
    }
}

void
UserTLB::setPermission(Addr page, Permission permission)
{
    if (permission == RW)
        tables.erase(page);
    else
        tables[page] = permission;
    setEntry(page, permission);
}

Permission
UserTLB::lookup(Addr page, Cycles &delay)
{
    stats.lookups++;
    auto at = std::find_if(entries.begin(), entries.end(),
                           [page](const Entry &e) { return e.page == page; });
    if (at != entries.end()) {
        entries.splice(entries.begin(), entries, at);
        return at->permission;
    }
    stats.misses++;
    delay = delay + p.walk_cycles;
    auto known = tables.find(page);
    const Permission permission = known == tables.end() ? RW : known->second;
    entries.push_front({page, permission});
    if (entries.size() > p.user_entries)
        entries.pop_back();
    return permission;
}

bool
UserTLB::passes(const Context &c, const RequestPtr &req, ThreadContext *tc,
                Addr addr) const
{
    return c.armed && c.depth == 0 && req->hasPC() &&
        req->getPC() == c.armedPc &&
        tc->getCurrentInstCount() == c.armedCount &&
        c.armedAddrs.count(addr) != 0;
}

UserTLB::Verdict
UserTLB::check(const RequestPtr &req, ThreadContext *tc, BaseMMU::Mode mode)
{
    Verdict verdict;
    if (mode == BaseMMU::Execute || req->getSize() == 0)
        return verdict;
    // The load of a read-modify-write is checked as a store: else its store would find the permit used.
    const bool modifies = req->getFlags() & Request::READ_MODIFY_WRITE;
    const bool store = mode == BaseMMU::Write || modifies;
    const Addr first = req->getVaddr(), last = first + req->getSize() - 1;
    Context &c = context(tc);
    for (Addr page = pageOf(first); page <= pageOf(last); page += PAGE) {
        const Permission permission = lookup(page, verdict.delay);
        const bool program =
            permission != RW && (store || permission != RO);
        const Addr addr = std::max(first, page);
        if (program && c.handler != 0 && !passes(c, req, tc, addr)) {
            verdict.delay = verdict.delay + p.raise_cycles + p.entry_cycles;
            verdict.fault = std::make_shared<UserFault>(
                this, addr, store, permission);
            return verdict;
        }
    }
    // A debugger's watches are served by a handler that is part of the model.
    if (watches.guard(first, last, store)) {
        stats.faults++;
        verdict.delay = verdict.delay + p.raise_cycles + p.entry_cycles +
            p.lookup_cycles + p.return_cycles;
        SETranslatingPortProxy memory(tc);
        if (watches.touch(memory, first, last, mode == BaseMMU::Write))
            settleLater(tc);
        else
            stats.falsePositives++;
    }
    return verdict;
}

// When the instruction is complete, old and new are compared.
void
UserTLB::settleLater(ThreadContext *tc)
{
    if (settling)
        return;
    settling = true;
    auto *event = new EventFunctionWrapper(
        [this, tc] { settle(tc); }, name() + ".settle", true);
    tc->scheduleInstCountEvent(event, tc->getCurrentInstCount() + 1);
}

void
UserTLB::settle(ThreadContext *tc)
{
    settling = false;
    SETranslatingPortProxy memory(tc);
    for (const Hit &hit : watches.settle(memory)) {
        stats.hits++;
        if (hit.silent)
            stats.silentStores++;
        DPRINTF(Ulpf, "%s of %#x, %s\n", hit.name(), hit.addr,
                hit.silent ? "silent" : "a hit");
        if (hit.stops() && workload)
            workload->tell(tc, hit);
    }
}

UserTLB::Verdict
UserTLB::magic(const RequestPtr &req, BaseMMU::Mode mode)
{
    Verdict verdict;
    const Addr offset = req->getVaddr() & (PAGE - 1);
    if (mode == BaseMMU::Write) {
        verdict.fault = std::make_shared<OpFault>(this, offset);
        if (offset == OP_ULIRET)
            verdict.delay = p.return_cycles;
        return verdict;
    }
    req->setPaddr(req->getVaddr());
    req->setLocalAccessor([this, offset](ThreadContext *tc, PacketPtr pkt) {
        const uint64_t value = offset == CR17 ? context(tc).faultAddr : 0;
        if (pkt->getSize() == sizeof(value))
            pkt->setLE<uint64_t>(value);
        return Cycles(1);
    });
    return verdict;
}

UserTLB::Verdict
UserTLB::translate(const RequestPtr &req, ThreadContext *tc,
                   BaseMMU::Mode mode)
{
    if (mode != BaseMMU::Execute && pageOf(req->getVaddr()) == MAGIC)
        return magic(req, mode);
    Verdict verdict;
    // SE mode: the base class never defers.
    verdict.fault = X86ISA::TLB::translateAtomic(req, tc, mode);
    return verdict.fault == NoFault ? check(req, tc, mode) : verdict;
}

Fault
UserTLB::translateAtomic(const RequestPtr &req, ThreadContext *tc,
                         BaseMMU::Mode mode)
{
    return translate(req, tc, mode).fault;
}

void
UserTLB::translateTiming(const RequestPtr &req, ThreadContext *tc,
                         BaseMMU::Translation *translation,
                         BaseMMU::Mode mode)
{
    const Verdict verdict = translate(req, tc, mode);
    const Fault fault = verdict.fault;
    if (verdict.delay == Cycles(0)) {
        translation->finish(fault, req, tc, mode);
        return;
    }
    translation->markDelayed();
    auto *event = new EventFunctionWrapper(
        [fault, req, tc, translation, mode] {
            translation->finish(fault, req, tc, mode);
        },
        name() + ".delay", true);
    auto *cpu = tc->getCpuPtr();
    cpu->schedule(event, cpu->clockEdge(verdict.delay));
}

std::string
UserTLB::watch(Addr addr, Addr length, const std::string &kind)
{
    return watches.add(addr, length, kind);
}

std::string
UserTLB::unwatch(Addr addr, Addr length, const std::string &kind)
{
    return watches.remove(addr, length, kind);
}

std::string
UserTLB::summary() const
{
    const auto line = [](const char *name, const statistics::Scalar &s) {
        return csprintf("%s %d\n", name, (uint64_t)s.value());
    };
    return line("tlb_lookups", stats.lookups) +
        line("tlb_misses", stats.misses) + line("faults", stats.faults) +
        line("hits", stats.hits) +
        line("silent_stores", stats.silentStores) +
        line("false_positives", stats.falsePositives) +
        line("handler_cycles", stats.handlerCycles);
}

} // namespace ulpf
} // namespace gem5
