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

// Who is to be told of an access, and of what.
struct Hit
{
    Kind kind;
    // The first watched byte of what was accessed.
    Addr addr;
    // What was done to it; both, if the instruction changes its operand.
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

    // Is a page of these bytes closed for such an access?
    bool guard(Addr first, Addr last, bool store) const;
    // An access to closed pages is about to be made; false: it concerns no watch. The load of a
    // read-modify-write is both.
    bool touch(PortProxy &memory, Addr first, Addr last, bool store, bool load);
    // What was touched is done: old and new are compared. How many writes were silent, of those that
    // a watch is for.
    unsigned settle(PortProxy &memory);
    // The first hit since the last call that somebody wants to stop for.
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

    // What was accessed of a watch, and whether it may be different now.
    struct Span
    {
        Addr begin, end;
        bool changed;
    };

    // How many watches of each page close it for stores, and for loads as well.
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
