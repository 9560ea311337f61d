// SPDX-License-Identifier: MIT OR Apache-2.0
// The user's tables: two bits for each page, in a region of 128 bytes for each 2 MiB. A region is the
// machine's own, or lies in the program's memory (a PLI page), where a plain store changes it.

#ifndef __ULPF_TABLES_HH__
#define __ULPF_TABLES_HH__

#include <array>
#include <unordered_map>

#include "ulpf/interface.hh"

namespace gem5
{

class PortProxy;

namespace ulpf
{

class Tables
{
  public:
    // Memory that is not there any more forbids nothing.
    Permission permission(PortProxy &memory, Addr page) const;
    // false: the program's region cannot be written.
    bool set(PortProxy &memory, Addr page, Permission permission);

    // ULPF_OP_BIND and ULPF_OP_UNBIND: 0, or an errno.
    int bind(Addr prefix, Addr region);
    int unbind(Addr prefix);
    bool bound(Addr addr) const;

  private:
    struct Region
    {
        // Of the program's memory; 0: ours.
        Addr place = 0;
        std::array<uint8_t, REGION> bytes{};
    };

    std::unordered_map<Addr, Region> regions;
};

} // namespace ulpf
} // namespace gem5

#endif // __ULPF_TABLES_HH__
