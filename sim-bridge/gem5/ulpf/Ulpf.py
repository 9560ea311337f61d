# SPDX-License-Identifier: MIT OR Apache-2.0
"""The SimObjects: a data TLB with user-level permissions, an MMU that has it, /dev/ulpf, and Linux with a remote
port that tells of hits. What they cost are parameters; the defaults are the thesis's (Tables 4.1 and 4.2)."""

from m5.objects.Process import EmulatedDriver
from m5.objects.X86MMU import X86MMU
from m5.objects.X86SeWorkload import X86EmuLinux
from m5.objects.X86TLB import X86TLB
from m5.params import *
from m5.proxy import *
from m5.util.pybind import PyBindMethod


class UlpfTLB(X86TLB):
    type = "UlpfTLB"
    cxx_class = "gem5::ulpf::UserTLB"
    cxx_header = "ulpf/tlb.hh"
    cxx_exports = [
        PyBindMethod("watch"),
        PyBindMethod("unwatch"),
        PyBindMethod("summary"),
    ]

    user_entries = Param.Unsigned(64, "pages whose user-level permission is known, in four ways")
    write_once = Param.String("corrected", "the rule of a handler that just returns: bit, thesis or corrected")
    raise_cycles = Param.Cycles(65, "to raise a fault (Table 4.2)")
    entry_cycles = Param.Cycles(65, "to enter the handler (Table 4.2)")
    return_cycles = Param.Cycles(85, "ULIRET (Table 4.1)")
    walk_cycles = Param.Cycles(20, "to walk the user's tables")
    lookup_cycles = Param.Cycles(200, "of the modelled handler that serves a debugger's watches")


class UlpfMMU(X86MMU):
    dtb = UlpfTLB(entry_type="data")


class UlpfDriver(EmulatedDriver):
    type = "UlpfDriver"
    cxx_class = "gem5::ulpf::Driver"
    cxx_header = "ulpf/driver.hh"
    filename = "ulpf"

    tlb = Param.UlpfTLB("the data TLB of the processor")


class UlpfEmuLinux(X86EmuLinux):
    type = "UlpfEmuLinux"
    cxx_class = "gem5::ulpf::Workload"
    cxx_header = "ulpf/workload.hh"

    # Chosen by name, never for an executable that only fits.
    @classmethod
    def _is_compatible_with(cls, obj):
        return False
