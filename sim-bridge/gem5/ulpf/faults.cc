// SPDX-License-Identifier: MIT OR Apache-2.0
#include "ulpf/faults.hh"

#include <memory>
#include <string>

#include "arch/x86/pcstate.hh"
#include "arch/x86/regs/int.hh"
#include "arch/x86/regs/misc.hh"
#include "arch/x86/utility.hh"
#include "cpu/base.hh"
#include "cpu/static_inst.hh"
#include "cpu/thread_context.hh"
#include "debug/Ulpf.hh"
#include "mem/se_translating_port_proxy.hh"
#include "ulpf/tlb.hh"
#include "ulpf/workload.hh"

namespace gem5
{
namespace ulpf
{

namespace
{

// Clear in a handler: TF, DF, NT, RF, AC.
constexpr uint64_t CLEARED =
    1 << 8 | 1 << 10 | 1 << 14 | 1 << 16 | 1 << 18;
// Flags that user mode may set.
constexpr uint64_t USER_FLAGS = 0x254dd5;

} // anonymous namespace

void
UserFault::invoke(ThreadContext *tc, const StaticInstPtr &inst)
{
    Context &c = tlb->context(tc);
    const Addr ip = tc->pcState().instAddr();
    const uint64_t flags = X86ISA::getRFlags(tc);
    const Addr sp = tc->getReg(X86ISA::int_reg::Rsp);
    tlb->stats.faults++;
    c.faultAddr = addr;
    if (c.handler == 0) {
        tlb->stats.unhandled++;
        tlb->workload->signal(tc, csprintf(
            "the user's tables forbid the %s %#x by %#x, and there is no "
            "handler", store ? "store to" : "load of", addr, ip));
        return;
    }

    const Addr at = (sp - RED_ZONE - sizeof(Frame)) & ~Addr(15);
    const Frame frame{
        addr, (store ? INFO_WRITE : 0) | (uint64_t(permission) << INFO_PERM_SHIFT),
        c.cookie, ip, 0x33, flags, sp, 0x2b};
    SETranslatingPortProxy memory(tc);
    if (tlb->permission(tc, pageOf(at)) != RW ||
        !memory.tryWriteBlob(at, &frame, sizeof(frame))) {
        tlb->stats.undelivered++;
        tlb->workload->signal(tc, csprintf(
            "no room for the handler's frame at %#x", at));
        return;
    }
    tlb->upcalls++;
    c.once.faulted({ip, tc->getCurrentInstCount()}, addr, at, curTick());
    DPRINTF(Ulpf, "%#x by %#x: to the handler\n", addr, ip);

    X86ISA::setRFlags(tc, flags & ~CLEARED);
    tc->setReg(X86ISA::int_reg::Rsp, at);
    tc->pcState(c.handler);
}

void
SegFault::invoke(ThreadContext *tc, const StaticInstPtr &inst)
{
    const Addr ip = tc->pcState().instAddr();
    const std::string what = csprintf(
        "a %s where nothing is mapped, %s %#x by %#x",
        store ? "store" : "load", store ? "to" : "of", addr, ip);
    workload->signal(tc, what);
}

void
OpFault::uliret(ThreadContext *tc)
{
    Context &c = tlb->context(tc);
    Frame frame;
    SETranslatingPortProxy memory(tc);
    const Addr sp = tc->getReg(X86ISA::int_reg::Rsp);
    if (!memory.tryReadBlob(sp, &frame, sizeof(frame))) {
        tlb->workload->signal(tc, csprintf(
            "ULIRET finds no frame at %#x", sp));
        return;
    }
    X86ISA::setRFlags(tc, (frame.flags & USER_FLAGS) | 0x202);
    tc->setReg(X86ISA::int_reg::Rsp, frame.sp);
    // The next instruction to be counted is the one that faulted.
    if (c.once.frame() != 0) {
        const Tick entered = c.once.entered();
        if (c.once.returned(frame.ip, tc->getCurrentInstCount(), 0)) {
            tlb->stats.handlerCycles +=
                tc->getCpuPtr()->ticksToCycles(curTick() - entered);
        }
    }
    tc->pcState(frame.ip);
}

void
OpFault::invoke(ThreadContext *tc, const StaticInstPtr &inst)
{
    if (offset == OP_ULIRET) {
        uliret(tc);
        return;
    }
    const Addr arg = tc->getReg(X86ISA::int_reg::Rax);
    switch (offset) {
      case OP_SET_RO:
        tlb->setEntry(pageOf(arg), RO);
        break;
      case OP_SET_RW:
        tlb->setEntry(pageOf(arg), RW);
        break;
      case OP_CR18:
        tlb->context(tc).handler = arg;
        break;
      default:
        warn_once("the magic page has no operation %#x", offset);
    }
    // The store is done.
    std::unique_ptr<PCStateBase> pc(tc->pcState().clone());
    pc->as<X86ISA::PCState>().uEnd();
    tc->pcState(*pc);
}

} // namespace ulpf
} // namespace gem5
