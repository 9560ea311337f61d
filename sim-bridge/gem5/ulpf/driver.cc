// SPDX-License-Identifier: MIT OR Apache-2.0
#include "ulpf/driver.hh"

#include <cerrno>
#include <memory>
#include <vector>

#include "cpu/thread_context.hh"
#include "debug/Ulpf.hh"
#include "mem/page_table.hh"
#include "mem/se_translating_port_proxy.hh"
#include "sim/fd_array.hh"
#include "sim/fd_entry.hh"
#include "sim/mem_state.hh"
#include "sim/process.hh"
#include "sim/se_workload.hh"
#include "ulpf/tlb.hh"

namespace gem5
{
namespace ulpf
{

namespace
{

// Linux's numbers, which the program uses.
constexpr int TGT_SHARED = 1, TGT_FIXED = 0x10;
constexpr int MAP_KIND_SHIFT = 60;
enum MapKind { MAP_GUARD, MAP_ALIAS, MAP_PLI };

// A structure that begins with its size: a longer one is accepted if the rest is zero. 0, or an errno.
template <class T>
int
take(PortProxy &memory, Addr buf, T &value)
{
    if (!memory.tryReadBlob(buf, &value, sizeof(value)))
        return EFAULT;
    if (value.size < sizeof(value) || value.flags != 0)
        return EINVAL;
    if (value.size > PAGE)
        return E2BIG;
    std::vector<uint8_t> rest(value.size - sizeof(value));
    if (!memory.tryReadBlob(buf + sizeof(value), rest.data(), rest.size()))
        return EFAULT;
    for (uint8_t byte : rest) {
        if (byte != 0)
            return E2BIG;
    }
    return 0;
}

template <class T>
int
give(PortProxy &memory, Addr buf, const T &value)
{
    return memory.tryWriteBlob(buf, &value, sizeof(value)) ? 0 : EFAULT;
}

} // anonymous namespace

Driver::Driver(const Params &p) : EmulatedDriver(p), tlb(p.tlb)
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
        return -query(memory, buf);
      case IOC_HANDLER:
        return -handler(tc, memory, buf);
      case IOC_APPLY: {
        Op op;
        if (!memory.tryReadBlob(buf, &op, sizeof(op)))
            return -EFAULT;
        return -apply(tc, op);
      }
      case IOC_BATCH:
        return -batch(tc, memory, buf);
      case IOC_LOOKUP:
        return -lookup(tc, memory, buf);
      case IOC_COUNTS:
        return -counts(memory, buf);
      case IOC_STACK:
      case IOC_RING:
      case IOC_POLICY:
      case IOC_STORE:
        return -EOPNOTSUPP;
      default:
        return -ENOTTY;
    }
}

int
Driver::query(PortProxy &memory, Addr buf)
{
    Query query;
    if (int error = take(memory, buf, query))
        return error;
    const bool spoken = query.version == VERSION;
    query = {sizeof(query), 0, VERSION, MACHINE_GEM5,
             FEATURE_READ | FEATURE_PLI_LOOSEN | FEATURE_ONCE, BATCH_MAX, 0};
    const int error = give(memory, buf, query);
    return error != 0 || spoken ? error : EPROTONOSUPPORT;
}

int
Driver::handler(ThreadContext *tc, PortProxy &memory, Addr buf)
{
    Handler handler;
    // Its flags are no reserved ones.
    if (!memory.tryReadBlob(buf, &handler, sizeof(handler)))
        return EFAULT;
    if (handler.size < sizeof(handler) ||
        handler.flags & ~(HANDLER_REPLACE | HANDLER_ONCE | HANDLER_SIGSTACK))
        return EINVAL;
    if (handler.flags & HANDLER_SIGSTACK)
        return EOPNOTSUPP;
    Context &c = tlb->context(tc);
    uint8_t code;
    if (handler.entry == 0) {
        if (c.handler == 0)
            return ENOENT;
    } else if (c.handler != 0 && !(handler.flags & HANDLER_REPLACE)) {
        return EBUSY;
    } else if (handler.entry >= USER_END ||
               !memory.tryReadBlob(handler.entry, &code, 1)) {
        return EFAULT;
    }
    c.handler = handler.entry;
    c.cookie = handler.cookie;
    c.permits = handler.flags & HANDLER_ONCE;
    return 0;
}

bool
Driver::holds(ThreadContext *tc, const Mapped &mapped, Addr first,
              Addr length) const
{
    for (Addr page = pageOf(first); page < first + length; page += PAGE) {
        auto at = mapped.find(page);
        const auto *now = tc->getProcessPtr()->pTable->lookup(page);
        if (at == mapped.end() || !now || now->paddr != at->second)
            return false;
    }
    return true;
}

int
Driver::apply(ThreadContext *tc, const Op &op)
{
    if (op.flags != 0 || op.addr >= USER_END || op.length > USER_END ||
        op.addr + op.length > USER_END)
        return EINVAL;
    const bool pages =
        op.addr % PAGE == 0 && op.length % PAGE == 0 && op.length != 0;
    const bool prefix = op.addr % PREFIX == 0 && op.length == PREFIX;
    int error = 0;
    switch (op.op) {
      case OP_SET:
      case OP_SYNC:
        if (!pages || op.arg > NONE || (op.op == OP_SYNC && op.arg != 0))
            return EINVAL;
        if (op.op == OP_SET && op.arg == EXE)
            return EOPNOTSUPP;
        if (!holds(tc, guarded, op.addr, op.length))
            return ENOMEM;
        for (Addr page = op.addr; page < op.addr + op.length; page += PAGE) {
            if (op.op == OP_SYNC)
                tlb->forget(page);
            else if (!tlb->setPermission(
                         tc, page, static_cast<Permission>(op.arg)))
                return EFAULT;
        }
        break;
      case OP_GUARD:
        return EOPNOTSUPP;
      case OP_BIND:
        if (!prefix || op.arg % REGION != 0 || op.arg % PAGE == 0)
            return EINVAL;
        if (!holds(tc, regions, op.arg, 1))
            return EFAULT;
        error = tlb->tables.bind(op.addr, op.arg);
        break;
      case OP_UNBIND:
        if (!prefix || op.arg != 0)
            return EINVAL;
        error = tlb->tables.unbind(op.addr);
        break;
      default:
        return EINVAL;
    }
    if (error != 0)
        return error;
    if (op.op == OP_BIND || op.op == OP_UNBIND)
        tlb->forgetAll();
    changes++;
    DPRINTF(Ulpf, "change %d of %#x (+%#x): %#x\n", op.op, op.addr, op.length,
            op.arg);
    return 0;
}

int
Driver::batch(ThreadContext *tc, PortProxy &memory, Addr buf)
{
    Batch batch;
    if (int error = take(memory, buf, batch))
        return error;
    if (batch.op_size != sizeof(Op) || batch.reserved != 0)
        return EINVAL;
    if (batch.count > BATCH_MAX)
        return E2BIG;
    int result = 0;
    for (batch.done = 0; batch.done < batch.count; batch.done++) {
        Op op;
        const Addr at = batch.ops + Addr(batch.done) * sizeof(op);
        result =
            memory.tryReadBlob(at, &op, sizeof(op)) ? apply(tc, op) : EFAULT;
        if (result != 0)
            break;
    }
    const int error = give(memory, buf, batch);
    return error != 0 ? error : result;
}

int
Driver::lookup(ThreadContext *tc, PortProxy &memory, Addr buf)
{
    Page page;
    if (int error = take(memory, buf, page))
        return error;
    if (page.addr >= USER_END)
        return EFAULT;
    page.permission = tlb->permission(tc, pageOf(page.addr));
    page.guard = 0;
    page.state = (holds(tc, guarded, page.addr, 1) ? PAGE_GUARDED : 0) |
        (tlb->tables.bound(page.addr) ? PAGE_BOUND : 0);
    page.reserved = 0;
    return give(memory, buf, page);
}

int
Driver::counts(PortProxy &memory, Addr buf)
{
    Counts counts;
    if (int error = take(memory, buf, counts))
        return error;
    const uint64_t unhandled = tlb->stats.unhandled.value();
    const uint64_t undelivered = tlb->stats.undelivered.value();
    counts = {sizeof(counts), 0, tlb->upcalls, 0, 0, 0, unhandled,
              undelivered, changes, changes};
    return give(memory, buf, counts);
}

Addr
Driver::mmap(ThreadContext *tc, Addr start, uint64_t length, int prot,
             int flags, int fd, off_t offset)
{
    const unsigned kind = uint64_t(offset) >> MAP_KIND_SHIFT;
    const Addr from = offset & ((1ULL << MAP_KIND_SHIFT) - 1);
    const Addr size = (length + PAGE - 1) & ~(PAGE - 1);
    const Addr limit = kind == MAP_PLI ? PLI_SIZE : STORE_SIZE;
    if (!(flags & TGT_SHARED) || kind > MAP_PLI || length == 0 ||
        from % PAGE != 0 || size > limit || from > limit - size)
        return -EINVAL;
    auto process = tc->getProcessPtr();
    auto state = process->memState;
    if (flags & TGT_FIXED) {
        if (start % PAGE != 0 || start >= USER_END || size > USER_END - start)
            return -EINVAL;
        state->unmapRegion(start, size);
    } else if (start == 0 || start % PAGE != 0 ||
               !state->isUnmapped(start, size)) {
        start = state->extendMmap(size);
    }
    state->mapRegion(start, size, "ulpf", -1, 0);
    Frames &frames = kind == MAP_PLI ? pli : store;
    for (Addr done = 0; done < size; done += PAGE) {
        auto at = frames.find(from + done);
        if (at == frames.end()) {
            const Addr frame = process->seWorkload->allocPhysPages(1);
            at = frames.emplace(from + done, frame).first;
        }
        process->pTable->map(start + done, at->second, PAGE,
                             EmulationPageTable::Clobber);
        if (kind == MAP_GUARD)
            guarded[start + done] = at->second;
        if (kind == MAP_PLI)
            regions[start + done] = at->second;
    }
    return start;
}

} // namespace ulpf
} // namespace gem5
