// SPDX-License-Identifier: MIT OR Apache-2.0
#include "ulpf/faults.hh"

#include <memory>

#include "arch/x86/faults.hh"
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

namespace gem5
{
namespace ulpf
{

namespace
{

// Clear in a handler: TF, DF, NT, RF, AC.
constexpr uint64_t CLEARED =
    1 << 8 | 1 << 10 | 1 << 14 | 1 << 16 | 1 << 18;
// What a user may set.
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

    const Addr at = (sp - RED_ZONE - sizeof(Frame)) & ~Addr(15);
    const Frame frame{
        addr, (store ? INFO_WRITE : 0) | (uint64_t(permission) << INFO_PERM_SHIFT),
        c.cookie, ip, 0x33, flags, sp, 0x2b};
    SETranslatingPortProxy memory(tc);
    if (!memory.tryWriteBlob(at, &frame, sizeof(frame))) {
        // A frame that finds no memory is the kernel's fault, as on the stack's end.
        std::make_shared<X86ISA::PageFault>(at, true, BaseMMU::Write, true, false)
            ->invoke(tc, inst);
        return;
    }
    // Another execution of the instruction, or another instruction: what it was permitted is over.
    if (!c.armed || c.armedPc != ip ||
        c.armedCount != tc->getCurrentInstCount()) {
        c.armedAddrs.clear();
    }
    c.armed = true;
    c.armedPc = ip;
    c.armedAddrs.insert(addr);
    if (c.depth++ == 0)
        c.entered = curTick();
    DPRINTF(Ulpf, "%#x by %#x: to the handler\n", addr, ip);

    X86ISA::setRFlags(tc, flags & ~CLEARED);
    tc->setReg(X86ISA::int_reg::Rsp, at);
    tc->pcState(c.handler);
}

void
OpFault::uliret(ThreadContext *tc)
{
    Context &c = tlb->context(tc);
    Frame frame;
    SETranslatingPortProxy memory(tc);
    const Addr sp = tc->getReg(X86ISA::int_reg::Rsp);
    if (!memory.tryReadBlob(sp, &frame, sizeof(frame))) {
        std::make_shared<X86ISA::PageFault>(sp, true, BaseMMU::Read, true, false)
            ->invoke(tc);
        return;
    }
    X86ISA::setRFlags(tc, (frame.flags & USER_FLAGS) | 0x202);
    tc->setReg(X86ISA::int_reg::Rsp, frame.sp);
    if (c.depth > 0 && --c.depth == 0) {
        tlb->stats.handlerCycles +=
            tc->getCpuPtr()->ticksToCycles(curTick() - c.entered);
    }
    // The next instruction to be counted is the one that faulted.
    c.armedCount = tc->getCurrentInstCount();
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
