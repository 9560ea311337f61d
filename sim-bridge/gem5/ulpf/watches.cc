// SPDX-License-Identifier: MIT OR Apache-2.0
#include "ulpf/watches.hh"

#include <algorithm>
#include <tuple>

#include "base/cprintf.hh"
#include "mem/port_proxy.hh"
#include "ulpf/interface.hh"

namespace gem5
{
namespace ulpf
{

namespace
{

bool
kindOf(const std::string &word, Kind &kind)
{
    if (word != "w" && word != "r" && word != "rw")
        return false;
    kind = word == "w" ? Kind::Write : word == "r" ? Kind::Read : Kind::Access;
    return true;
}

} // anonymous namespace

std::string
Hit::reason() const
{
    const char *name = kind == Kind::Write ? "watch"
        : kind == Kind::Read ? "rwatch" : "awatch";
    const char *access = !write ? "r" : read ? "rw" : "w";
    return csprintf("%s:%x;ulpf-access:%s", name, addr, access);
}

bool
Watches::Watch::operator<(const Watch &other) const
{
    return std::tie(first, last, kind) <
        std::tie(other.first, other.last, other.kind);
}

void
Watches::count(const Watch &watch, int by)
{
    for (Addr page = pageOf(watch.first); page <= pageOf(watch.last);
         page += PAGE) {
        Closed &closed = pages[page];
        closed.watches += by;
        if (watch.kind != Kind::Write)
            closed.loads += by;
        if (closed.watches == 0)
            pages.erase(page);
    }
}

std::string
Watches::add(Addr addr, Addr length, const std::string &word)
{
    Kind kind;
    if (!kindOf(word, kind))
        return csprintf("%s is no kind of watch; there are w, r and rw", word);
    if (length == 0 || length > (Addr(1) << 30) || addr + length < addr)
        return csprintf("%d bytes at %#x cannot be watched", length, addr);
    const Watch watch{addr, addr + length - 1, kind};
    all[watch]++;
    count(watch, 1);
    longest = std::max(longest, length);
    return "ok";
}

std::string
Watches::remove(Addr addr, Addr length, const std::string &word)
{
    Kind kind;
    if (!kindOf(word, kind))
        return csprintf("%s is no kind of watch; there are w, r and rw", word);
    auto at = all.find({addr, addr + length - 1, kind});
    if (at == all.end())
        return csprintf("there is no such watch at %#x", addr);
    count(at->first, -1);
    if (--at->second == 0)
        all.erase(at);
    return "ok";
}

bool
Watches::guard(Addr first, Addr last, bool store) const
{
    if (pages.empty())
        return false;
    for (Addr page = pageOf(first); page <= pageOf(last); page += PAGE) {
        auto closed = pages.find(page);
        if (closed != pages.end() && (store || closed->second.loads != 0))
            return true;
    }
    return false;
}

bool
Watches::concerns(Addr first, Addr last) const
{
    const Addr from = first < longest ? 0 : first - longest;
    for (auto at = all.lower_bound({from, 0, Kind::Write});
         at != all.end() && at->first.first <= last; ++at) {
        if (at->first.last >= first)
            return true;
    }
    return false;
}

bool
Watches::touch(PortProxy &memory, Addr first, Addr last, bool store,
               bool load)
{
    if (!concerns(first, last))
        return false;
    Piece piece{first, store, load, std::vector<uint8_t>(last - first + 1)};
    if (!memory.tryReadBlob(first, piece.old.data(), piece.old.size()))
        return false;
    pieces.push_back(std::move(piece));
    return true;
}

unsigned
Watches::settle(PortProxy &memory)
{
    std::vector<Piece> done;
    done.swap(pieces);
    // The accessed range of each watch, and whether it has changed. The first piece of a byte has
    // its old value.
    std::map<Watch, Span> hits;
    for (const Piece &piece : done) {
        const Addr last = piece.last();
        std::vector<uint8_t> now(piece.old.size());
        memory.tryReadBlob(piece.first, now.data(), now.size());
        const Addr from = piece.first < longest ? 0 : piece.first - longest;
        for (auto at = all.lower_bound({from, 0, Kind::Write});
             at != all.end() && at->first.first <= last; ++at) {
            const Watch &watch = at->first;
            const bool wanted = watch.kind == Kind::Access ||
                (watch.kind == Kind::Write ? piece.store : piece.load);
            if (watch.last < piece.first || !wanted)
                continue;
            const Addr begin = std::max(watch.first, piece.first);
            const Addr end = std::min(watch.last, last);
            const bool same = piece.store && std::equal(
                now.begin() + (begin - piece.first),
                now.begin() + (end - piece.first) + 1,
                piece.old.begin() + (begin - piece.first));
            Span &hit =
                hits.emplace(watch, Span{begin, end, false}).first->second;
            hit.begin = std::min(hit.begin, begin);
            hit.end = std::max(hit.end, end);
            hit.changed = hit.changed || !same;
        }
    }
    unsigned silent = 0;
    for (const auto &[watch, hit] : hits) {
        silent += !hit.changed;
        if (stop || (watch.kind == Kind::Write && !hit.changed))
            continue;
        // An instruction that changes an operand has read it first.
        stop = Hit{watch.kind, hit.begin, false, false};
        for (const Piece &piece : done) {
            if (piece.first <= hit.end && hit.begin <= piece.last()) {
                stop->write = stop->write || piece.store;
                stop->read = stop->read || piece.load;
            }
        }
    }
    return silent;
}

bool
Watches::take(Hit &hit)
{
    if (!stop)
        return false;
    hit = *stop;
    stop.reset();
    return true;
}

} // namespace ulpf
} // namespace gem5
