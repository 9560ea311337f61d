// SPDX-License-Identifier: MIT OR Apache-2.0
#include "ulpf/driver.hh"

#include <cerrno>
#include <memory>

#include "cpu/thread_context.hh"
#include "debug/Ulpf.hh"
#include "mem/se_translating_port_proxy.hh"
#include "sim/fd_array.hh"
#include "sim/fd_entry.hh"
#include "sim/mem_state.hh"
#include "sim/process.hh"
#include "ulpf/tlb.hh"

namespace gem5
{
namespace ulpf
{

Driver::Driver(const Params &p)
    : EmulatedDriver(p), tlbs(p.tlbs.begin(), p.tlbs.end())
{}

int
Driver::open(ThreadContext *tc, int mode, int flags)
{
    auto entry = std::make_shared<DeviceFDEntry>(this, filename);
    return tc->getProcessPtr()->fds->allocFD(entry);
}

int
Driver::ioctl(ThreadContext *tc, unsigned req, Addr buf)
{
    SETranslatingPortProxy memory(tc);
    switch (req) {
      case IOC_QUERY:
        return query(memory, buf);
      case IOC_HANDLER:
        return handler(tc, memory, buf);
      case IOC_APPLY: {
        Op op;
        if (!memory.tryReadBlob(buf, &op, sizeof(op)))
            return -EFAULT;
        return apply(op);
      }
      case IOC_BATCH:
        return batch(memory, buf);
      default:
        return -ENOTTY;
    }
}

int
Driver::query(PortProxy &memory, Addr buf)
{
    Query query;
    if (!memory.tryReadBlob(buf, &query, sizeof(query)))
        return -EFAULT;
    if (query.size < sizeof(query) || query.flags != 0)
        return -EINVAL;
    query = {sizeof(query), 0, 1, MACHINE_GEM5, FEATURE_READ | FEATURE_ONCE,
             BATCH_MAX, 0};
    return memory.tryWriteBlob(buf, &query, sizeof(query)) ? 0 : -EFAULT;
}

int
Driver::handler(ThreadContext *tc, PortProxy &memory, Addr buf)
{
    Handler handler;
    if (!memory.tryReadBlob(buf, &handler, sizeof(handler)))
        return -EFAULT;
    if (handler.size < sizeof(handler) ||
        (handler.flags & ~(HANDLER_REPLACE | HANDLER_ONCE)) != 0)
        return -EINVAL;
    // This machine permits an access once in any case.
    for (UserTLB *tlb : tlbs) {
        Context &c = tlb->context(tc);
        if (c.handler != 0 && !(handler.flags & HANDLER_REPLACE))
            return -EBUSY;
        c.handler = handler.entry;
        c.cookie = handler.cookie;
    }
    return 0;
}

int
Driver::apply(const Op &op)
{
    if (op.op != OP_SET && op.op != OP_SYNC)
        return -EOPNOTSUPP;
    if (op.flags != 0 || op.addr % PAGE != 0 || op.length % PAGE != 0 ||
        op.length == 0 || op.addr + op.length < op.addr ||
        op.addr + op.length > MAGIC)
        return -EINVAL;
    if (op.op == OP_SYNC)
        return 0;
    if (op.arg > NONE)
        return -EINVAL;
    DPRINTF(Ulpf, "%#x (+%#x) is %d now\n", op.addr, op.length, op.arg);
    for (UserTLB *tlb : tlbs) {
        for (Addr page = op.addr; page < op.addr + op.length; page += PAGE)
            tlb->setPermission(page, static_cast<Permission>(op.arg));
    }
    return 0;
}

int
Driver::batch(PortProxy &memory, Addr buf)
{
    Batch batch;
    if (!memory.tryReadBlob(buf, &batch, sizeof(batch)))
        return -EFAULT;
    if (batch.size < sizeof(batch) || batch.flags != 0 ||
        batch.op_size < sizeof(Op))
        return -EINVAL;
    if (batch.count > BATCH_MAX)
        return -E2BIG;
    int result = 0;
    for (batch.done = 0; batch.done < batch.count; batch.done++) {
        Op op;
        const Addr at = batch.ops + Addr(batch.done) * batch.op_size;
        result = memory.tryReadBlob(at, &op, sizeof(op)) ? apply(op) : -EFAULT;
        if (result != 0)
            break;
    }
    if (!memory.tryWriteBlob(buf, &batch, sizeof(batch)))
        return -EFAULT;
    return result;
}

Addr
Driver::mmap(ThreadContext *tc, Addr start, uint64_t length, int prot,
             int flags, int fd, off_t offset)
{
    // Guarded memory is like any other here; aliases, PLI pages and rings are not there.
    if (length == 0 || offset < 0 || uint64_t(offset) >> 60 != 0)
        return -EINVAL;
    auto process = tc->getProcessPtr();
    const Addr size = (length + PAGE - 1) & ~(PAGE - 1);
    const Addr at = process->memState->extendMmap(size);
    process->memState->mapRegion(at, size, "ulpf", -1, 0);
    return at;
}

} // namespace ulpf
} // namespace gem5
