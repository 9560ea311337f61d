// SPDX-License-Identifier: MIT OR Apache-2.0
#include "ulpf/workload.hh"

#include "base/remote_gdb.hh"
#include "cpu/thread_context.hh"
#include "gdbremote/signals.hh"
#include "sim/sim_exit.hh"
#include "ulpf/tlb.hh"
#include "ulpf/watches.hh"

namespace gem5
{
namespace ulpf
{

Workload::Workload(const Params &p) : X86ISA::EmuLinux(p)
{}

void
Workload::registerThreadContext(ThreadContext *tc)
{
    EmuLinux::registerThreadContext(tc);
    // The remote port takes a thread for chosen as soon as a debugger attaches.
    if (gdb)
        gdb->selectThreadContext(tc->contextId());
}

void
Workload::syscall(ThreadContext *tc)
{
    if (tlb)
        tlb->callBegins();
    EmuLinux::syscall(tc);
    if (tlb)
        tlb->callEnds(tc);
}

void
Workload::tell(ThreadContext *tc, const Hit &hit)
{
    if (gdb && gdb->isAttached()) {
        gdb->scheduleTrapEvent(tc->contextId(), GDBSignal::TRAP, 0,
                               hit.reason());
    }
}

void
Workload::tellNow(ThreadContext *tc, const Hit &hit)
{
    if (gdb && gdb->isAttached()) {
        gdb->trap(tc->contextId(), GDBSignal::TRAP, hit.reason());
    }
}

void
Workload::signal(ThreadContext *tc, const std::string &why)
{
    const Addr pc = tc->pcState().instAddr();
    const Tick count = tc->getCurrentInstCount();
    const bool seen = seenPc == pc && seenCount == count;
    seenPc = pc;
    seenCount = count;
    if (!seen && gdb && gdb->isAttached())
        gdb->trap(tc->contextId(), GDBSignal::SEGV);
    else
        exitSimLoop("SIGSEGV: " + why, 128 + int(GDBSignal::SEGV));
}

} // namespace ulpf
} // namespace gem5
