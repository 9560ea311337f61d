// SPDX-License-Identifier: MIT OR Apache-2.0
// A debugger's watches: which pages they close, and what an instruction has done to them.

#ifndef __ULPF_WATCHES_HH__
#define __ULPF_WATCHES_HH__

#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/types.hh"

namespace gem5
{

class PortProxy;

namespace ulpf
{

enum class Kind { Write, Read, Access };

// A hit, as it is reported to the debugger.
struct Hit
{
    Kind kind;
    // The first watched byte of what was accessed.
    Addr addr;
    // Operations on it; both are set if the instruction changes its operand.
    bool write, read;

    // As in a stop reply; debuggers ignore the field that only the bridge knows.
    std::string reason() const;
};

class Watches
{
  public:
    // "ok", or why not.
    std::string add(Addr addr, Addr length, const std::string &kind);
    std::string remove(Addr addr, Addr length, const std::string &kind);

    // Whether a page of these bytes is closed for such an access.
    bool guard(Addr first, Addr last, bool store) const;
    // An access to closed pages is about to be made; false: it concerns no watch. The load of a
    // read-modify-write is both.
    bool touch(PortProxy &memory, Addr first, Addr last, bool store, bool load);
    // The accesses are done: compares old and new. Returns the number of writes to watches that were
    // silent.
    unsigned settle(PortProxy &memory);
    // The first hit since the last call that requests a stop.
    bool take(Hit &hit);
    bool empty() const { return all.empty(); }

  private:
    struct Watch
    {
        Addr first, last;
        Kind kind;
        bool operator<(const Watch &other) const;
    };

    struct Piece
    {
        Addr first;
        bool store, load;
        std::vector<uint8_t> old;

        Addr last() const { return first + old.size() - 1; }
    };

    // The accessed range of a watch, and whether it may have changed.
    struct Span
    {
        Addr begin, end;
        bool changed;
    };

    // Number of watches that close a page for stores, and for loads as well.
    struct Closed
    {
        unsigned watches = 0, loads = 0;
    };

    void count(const Watch &watch, int by);
    bool concerns(Addr first, Addr last) const;

    // Equal ones are counted: GDB may set the same watch twice.
    std::map<Watch, unsigned> all;
    std::unordered_map<Addr, Closed> pages;
    // The longest watch, which bounds where one that reaches an address may begin.
    Addr longest = 0;
    std::vector<Piece> pieces;
    std::optional<Hit> stop;
};

} // namespace ulpf
} // namespace gem5

#endif // __ULPF_WATCHES_HH__
