// SPDX-License-Identifier: MIT OR Apache-2.0
// Tests a debugger's watches for gem5, with this program's own memory and formatting: the hits of some
// instructions.
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <memory>

#include "../../gem5/ulpf/watches.cc"

namespace gem5
{

static uint8_t bytes[64];
constexpr Addr BEGIN = 0x2000;

bool
PortProxy::tryReadBlob(Addr addr, void *to, uint64_t size)
{
    if (addr < BEGIN || addr + size > BEGIN + sizeof(bytes))
        return false;
    std::memcpy(to, bytes + (addr - BEGIN), size);
    return true;
}

// Addresses are the only numbers that are formatted here.
std::string
csprintf(const char *format, ...)
{
    std::string wide;
    for (const char *at = format; *at; at++)
        wide += *at == 'x' && at[-1] == '%' ? "lx" : std::string(1, *at);
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof(text), wide.c_str(), arguments);
    va_end(arguments);
    return text;
}

} // namespace gem5

using namespace gem5;
using ulpf::Hit;
using ulpf::Watches;

static PortProxy memory;

// One instruction's accesses: `l` loads, `s` stores, `m` loads what the same instruction stores.
static void
instruction(const char *name, const char *kind, const char *does, Addr first, Addr length, uint8_t value)
{
    Watches watches;
    if (watches.add(BEGIN, 4, kind) != "ok")
        std::puts("refused");
    for (const char *step = does; *step; step++) {
        watches.touch(memory, first, first + length - 1, *step != 'l', *step != 's');
        if (*step == 's')
            std::memset(bytes + (first - BEGIN), value, length);
    }
    watches.settle(memory);
    Hit hit;
    std::printf("%s %s\n", name, watches.take(hit) ? hit.reason().c_str() : "-");
}

int
main()
{
    instruction("store", "w", "s", BEGIN + 2, 4, 1);
    instruction("add", "w", "ms", BEGIN, 4, 2);
    instruction("load", "rw", "l", BEGIN, 1, 0);
    instruction("load", "r", "l", BEGIN, 1, 0);
    instruction("add", "rw", "ms", BEGIN, 4, 3);
    instruction("add", "r", "ms", BEGIN, 4, 4);
    instruction("move", "rw", "s", BEGIN, 4, 5);
    instruction("silent", "w", "s", BEGIN, 4, 5);
}
