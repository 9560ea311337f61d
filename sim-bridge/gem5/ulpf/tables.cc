// SPDX-License-Identifier: MIT OR Apache-2.0
#include "ulpf/tables.hh"

#include <cerrno>

#include "mem/port_proxy.hh"

namespace gem5
{
namespace ulpf
{

namespace
{

Addr
byteOf(Addr page)
{
    return (page / PAGE % 512) / 4;
}

int
shiftOf(Addr page)
{
    return (page / PAGE % 4) * 2;
}

} // anonymous namespace

Permission
Tables::permission(PortProxy &memory, Addr page) const
{
    auto at = regions.find(page / PREFIX);
    if (at == regions.end())
        return RW;
    const Region &region = at->second;
    uint8_t byte = region.bytes[byteOf(page)];
    if (region.place != 0 &&
        !memory.tryReadBlob(region.place + byteOf(page), &byte, 1))
        return RW;
    return static_cast<Permission>(byte >> shiftOf(page) & 3);
}

bool
Tables::set(PortProxy &memory, Addr page, Permission permission)
{
    Region &region = regions[page / PREFIX];
    const Addr offset = byteOf(page);
    uint8_t byte = region.bytes[offset];
    if (region.place != 0 &&
        !memory.tryReadBlob(region.place + offset, &byte, 1))
        return false;
    byte = (byte & ~(3 << shiftOf(page))) | permission << shiftOf(page);
    if (region.place != 0)
        return memory.tryWriteBlob(region.place + offset, &byte, 1);
    region.bytes[offset] = byte;
    return true;
}

int
Tables::bind(Addr prefix, Addr region)
{
    for (const auto &[number, other] : regions) {
        if (other.place == region && number != prefix / PREFIX)
            return EBUSY;
    }
    Region &governs = regions[prefix / PREFIX];
    if (governs.place != 0 && governs.place != region)
        return EBUSY;
    governs = Region{region, {}};
    return 0;
}

int
Tables::unbind(Addr prefix)
{
    if (!bound(prefix))
        return ENOENT;
    regions.erase(prefix / PREFIX);
    return 0;
}

bool
Tables::bound(Addr addr) const
{
    auto at = regions.find(addr / PREFIX);
    return at != regions.end() && at->second.place != 0;
}

} // namespace ulpf
} // namespace gem5
