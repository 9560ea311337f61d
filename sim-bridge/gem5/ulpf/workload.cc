// SPDX-License-Identifier: MIT OR Apache-2.0
#include "ulpf/workload.hh"

#include "base/remote_gdb.hh"
#include "cpu/thread_context.hh"
#include "gdbremote/signals.hh"
#include "ulpf/tlb.hh"
#include "ulpf/watches.hh"

namespace gem5
{
namespace ulpf
{

Workload::Workload(const Params &p) : X86ISA::EmuLinux(p)
{
    for (UserTLB *tlb : p.tlbs)
        tlb->tell(this);
}

void
Workload::registerThreadContext(ThreadContext *tc)
{
    EmuLinux::registerThreadContext(tc);
    // The remote port takes a thread for chosen as soon as a debugger attaches.
    if (gdb)
        gdb->selectThreadContext(tc->contextId());
}

void
Workload::tell(ThreadContext *tc, const Hit &hit)
{
    if (gdb && gdb->isAttached()) {
        gdb->scheduleTrapEvent(tc->contextId(), GDBSignal::TRAP, 0,
                               csprintf("%s:%x", hit.name(), hit.addr));
    }
}

} // namespace ulpf
} // namespace gem5
