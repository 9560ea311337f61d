// SPDX-License-Identifier: MIT OR Apache-2.0
#include "ulpf/tlb.hh"

#include <algorithm>
#include <memory>

#include "arch/x86/regs/int.hh"
#include "base/intmath.hh"
#include "cpu/base.hh"
#include "cpu/thread_context.hh"
#include "debug/Ulpf.hh"
#include "mem/packet_access.hh"
#include "mem/se_translating_port_proxy.hh"
#include "sim/eventq.hh"
#include "sim/process.hh"
#include "sim/system.hh"
#include "ulpf/faults.hh"
#include "ulpf/workload.hh"

namespace gem5
{
namespace ulpf
{

namespace
{

// As in the machine on Unicorn.
constexpr size_t WAYS = 4;
// A stack pointer so far below a handler's frame is on another stack.
constexpr Addr FAR = 1 << 20;

} // anonymous namespace

UserTLB::Stats::Stats(statistics::Group *parent)
    : statistics::Group(parent),
      ADD_STAT(lookups, statistics::units::Count::get(),
               "accesses whose user-level permission was looked up"),
      ADD_STAT(misses, statistics::units::Count::get(),
               "of these, not known here: the user's tables were walked"),
      ADD_STAT(faults, statistics::units::Count::get(),
               "user-level page faults"),
      ADD_STAT(hits, statistics::units::Count::get(),
               "faults of a debugger's watches by accesses to what is watched"),
      ADD_STAT(silentStores, statistics::units::Count::get(),
               "writes to what is watched that left the value as it was"),
      ADD_STAT(falsePositives, statistics::units::Count::get(),
               "faults of a debugger's watches that were no hits"),
      ADD_STAT(handlerCycles, statistics::units::Cycle::get(),
               "from the first instruction of a handler to ULIRET"),
      ADD_STAT(unhandled, statistics::units::Count::get(),
               "faults of a program that has no handler"),
      ADD_STAT(undelivered, statistics::units::Count::get(),
               "faults whose frame found no memory")
{}

UserTLB::UserTLB(const Params &params)
    : X86ISA::TLB(params), stats(this), p(params), entries(p.user_entries)
{
    fatal_if(p.user_entries < WAYS || !isPowerOf2(p.user_entries),
             "user_entries: a power of two from %d on, not %d", WAYS,
             p.user_entries);
    fatal_if(!ruleOf(p.write_once, rule),
             "write_once: bit, thesis or corrected, not %s", p.write_once);
}

void
UserTLB::startup()
{
    X86ISA::TLB::startup();
    workload = dynamic_cast<Workload *>(p.system->workload);
    fatal_if(!workload, "%s: the system's workload is no UlpfEmuLinux",
             name());
    workload->hearOf(this);
}

Context &
UserTLB::context(ThreadContext *tc)
{
    return contexts[tc->contextId()];
}

UserTLB::Entry *
UserTLB::find(Addr page)
{
    const Addr number = page / PAGE;
    Entry *set = &entries[number % (entries.size() / WAYS) * WAYS];
    for (Entry *entry = set; entry < set + WAYS; entry++) {
        if (entry->page == number + 1)
            return entry;
    }
    return nullptr;
}

UserTLB::Entry &
UserTLB::lookup(ThreadContext *tc, Addr page, Cycles &delay)
{
    stats.lookups++;
    clock++;
    if (Entry *known = find(page)) {
        known->used = clock;
        return *known;
    }
    stats.misses++;
    delay = delay + p.walk_cycles;
    Entry *set = &entries[page / PAGE % (entries.size() / WAYS) * WAYS];
    Entry *oldest = std::min_element(
        set, set + WAYS,
        [](const Entry &a, const Entry &b) { return a.used < b.used; });
    *oldest = {page / PAGE + 1, clock, permission(tc, page), false};
    return *oldest;
}

void
UserTLB::setEntry(Addr page, Permission permission)
{
    if (Entry *entry = find(page))
        entry->permission = permission;
}

void
UserTLB::forget(Addr page)
{
    if (Entry *entry = find(page))
        *entry = {};
}

void
UserTLB::forgetAll()
{
    std::fill(entries.begin(), entries.end(), Entry{});
}

Permission
UserTLB::permission(ThreadContext *tc, Addr page) const
{
    SETranslatingPortProxy memory(tc);
    return tables.permission(memory, page);
}

bool
UserTLB::setPermission(ThreadContext *tc, Addr page, Permission permission)
{
    SETranslatingPortProxy memory(tc);
    setEntry(page, permission);
    return tables.set(memory, page, permission);
}

// A handler may be left by ordinary instructions, or by longjmp: its stack pointer tells.
void
UserTLB::handlerLeft(ThreadContext *tc)
{
    Context &c = context(tc);
    const Addr sp = tc->getReg(X86ISA::int_reg::Rsp);
    while (Addr frame = c.once.frame()) {
        if (sp < frame + sizeof(Frame) && frame - std::min(frame, sp) < FAR)
            return;
        Frame left{};
        SETranslatingPortProxy memory(tc);
        memory.tryReadBlob(frame, &left, sizeof(left));
        const Tick entered = c.once.entered();
        // This may be the `ret` that leads to the instruction.
        if (c.once.returned(left.ip, tc->getCurrentInstCount(), 1)) {
            stats.handlerCycles +=
                tc->getCpuPtr()->ticksToCycles(curTick() - entered);
        }
    }
}

// Does write-once not let a forbidden access pass?
bool
UserTLB::refused(const RequestPtr &req, ThreadContext *tc, Addr addr,
                 bool store, Entry &entry)
{
    // A store to a region that permits more is honoured now.
    const Permission now = permission(tc, pageOf(addr));
    if (!forbids(now, store) && tables.bound(addr)) {
        entry.permission = now;
        return false;
    }
    Context &c = context(tc);
    if (!c.permits)
        return true;
    const bool bit = entry.once;
    switch (rule) {
      case Rule::Bit:
        entry.once = !bit;
        return !bit;
      case Rule::Thesis:
        if (!bit || c.once.saved == addr)
            entry.once = !bit;
        if (!bit)
            c.once.saved = addr;
        return !bit;
      default:
        return !c.once.permits(
            {req->hasPC() ? req->getPC() : 0, tc->getCurrentInstCount()},
            addr);
    }
}

UserTLB::Verdict
UserTLB::check(const RequestPtr &req, ThreadContext *tc, BaseMMU::Mode mode)
{
    Verdict verdict;
    if (mode == BaseMMU::Execute || req->getSize() == 0)
        return verdict;
    handlerLeft(tc);
    // The load of a read-modify-write is checked as a store: else its store would find the permit used.
    const bool modifies = req->getFlags() & Request::READ_MODIFY_WRITE;
    const bool store = mode == BaseMMU::Write || modifies;
    const Addr first = req->getVaddr(), last = first + req->getSize() - 1;
    for (Addr page = pageOf(first); page <= pageOf(last); page += PAGE) {
        Entry &entry = lookup(tc, page, verdict.delay);
        const Addr addr = std::max(first, page);
        const Permission permission = entry.permission;
        if (forbids(permission, store) &&
            refused(req, tc, addr, store, entry)) {
            verdict.delay = verdict.delay + p.raise_cycles + p.entry_cycles;
            verdict.fault = std::make_shared<UserFault>(
                this, addr, store, permission);
            return verdict;
        }
    }
    if (watches.guard(first, last, store))
        serve(tc, first, last, store, mode != BaseMMU::Write, verdict.delay);
    return verdict;
}

// A debugger's watches are served by a handler that is part of the model.
void
UserTLB::serve(ThreadContext *tc, Addr first, Addr last, bool store,
               bool load, Cycles &delay)
{
    const Tick count = tc->getCurrentInstCount();
    const MicroPC upc = tc->pcState().microPC();
    const bool rest = served.tick == curTick() && served.next == first &&
        pageOf(served.first) == pageOf(first);
    const bool same = served.count == count && served.first == first;
    // The next iteration of a string instruction: what the last one has done is done.
    if (served.count == count && served.tick != curTick() && upc <= served.upc)
        settle(tc);
    SETranslatingPortProxy memory(tc);
    const bool hit = watches.touch(memory, first, last, store, load);
    if (hit)
        settleLater(tc);
    if (rest || same) {
        served.next = last + 1;
        served.tick = curTick();
        served.upc = upc;
        if (hit && !served.hit) {
            served.hit = true;
            stats.falsePositives--;
            stats.hits++;
        }
        return;
    }
    served = {first, last + 1, curTick(), count, upc, hit};
    stats.faults++;
    if (hit)
        stats.hits++;
    else
        stats.falsePositives++;
    delay = delay + p.raise_cycles + p.entry_cycles + p.lookup_cycles +
        p.return_cycles;
}

// When the instruction is complete, compares old and new, and tells the debugger.
void
UserTLB::settleLater(ThreadContext *tc)
{
    if (settling)
        return;
    settling = true;
    auto *event = new EventFunctionWrapper(
        [this, tc] {
            settling = false;
            settle(tc);
            tellOf(tc);
        },
        name() + ".settle", true);
    tc->scheduleInstCountEvent(event, tc->getCurrentInstCount() + 1);
}

void
UserTLB::settle(ThreadContext *tc)
{
    SETranslatingPortProxy memory(tc);
    stats.silentStores += watches.settle(memory);
}

void
UserTLB::tellOf(ThreadContext *tc)
{
    Hit hit;
    if (watches.take(hit))
        workload->tell(tc, hit);
}

void
UserTLB::callBegins()
{
    inCall = !watches.empty();
}

void
UserTLB::callEnds(ThreadContext *tc)
{
    if (!inCall)
        return;
    inCall = false;
    settle(tc);
    Hit hit;
    if (watches.take(hit))
        workload->tellNow(tc, hit);
}

Fault
UserTLB::translateFunctional(const RequestPtr &req, ThreadContext *tc,
                             BaseMMU::Mode mode)
{
    const Fault fault = X86ISA::TLB::translateFunctional(req, tc, mode);
    if (inCall && fault == NoFault && req->getSize() != 0) {
        const Addr first = req->getVaddr(), last = first + req->getSize() - 1;
        const bool store = mode == BaseMMU::Write;
        if (watches.guard(first, last, store)) {
            // Reads the old value as a debugger would.
            inCall = false;
            SETranslatingPortProxy memory(tc);
            watches.touch(memory, first, last, store, !store);
            inCall = true;
        }
    }
    return fault;
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
    // SE mode: the base class never defers. A page that is only not there yet is made.
    verdict.fault = X86ISA::TLB::translateAtomic(req, tc, mode);
    if (verdict.fault != NoFault &&
        tc->getProcessPtr()->fixupFault(req->getVaddr())) {
        verdict.fault = X86ISA::TLB::translateAtomic(req, tc, mode);
    }
    if (verdict.fault == NoFault)
        return check(req, tc, mode);
    verdict.fault = std::make_shared<SegFault>(
        workload, req->getVaddr(), mode == BaseMMU::Write);
    return verdict;
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
