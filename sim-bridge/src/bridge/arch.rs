// SPDX-License-Identifier: GPL-2.0-or-later
//! The registers for gdbstub: the target description, and the bytes of the `g` packet.

use gdbstub::arch::{Arch, RegId, Registers};
use std::fmt::Write;
use std::num::NonZeroUsize;
use std::sync::OnceLock;

pub enum Amd64 {}

impl Arch for Amd64 {
    type Usize = u64;
    type Registers = RegisterBytes;
    type BreakpointKind = usize;
    type RegId = RegisterNumber;

    fn target_description_xml() -> Option<&'static str> {
        static XML: OnceLock<String> = OnceLock::new();
        Some(XML.get_or_init(description))
    }
}

/// The `g` packet, in the layout of [`crate::registers`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegisterBytes(pub Vec<u8>);

impl Registers for RegisterBytes {
    type ProgramCounter = u64;

    fn pc(&self) -> u64 {
        // gdbstub needs it for implicit breakpoints only, which are not used.
        0
    }

    fn gdb_serialize(&self, write_byte: impl FnMut(Option<u8>)) {
        self.0.iter().copied().map(Some).for_each(write_byte);
    }

    fn gdb_deserialize(&mut self, bytes: &[u8]) -> Result<(), ()> {
        self.0 = bytes.into();
        Ok(())
    }
}

/// A register's number in the target description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisterNumber(pub usize);

impl RegId for RegisterNumber {
    fn from_raw_id(id: usize) -> Option<(Self, Option<NonZeroUsize>)> {
        Some((RegisterNumber(id), None))
    }

    fn to_raw_id(&self) -> Option<usize> {
        Some(self.0)
    }
}

/// Numbers of rbp, rsp and rip, and where they are in the `g` packet. A stop reply has them.
pub const EXPEDITED: [(RegisterNumber, std::ops::Range<usize>); 3] = [
    (RegisterNumber(6), 48..56),
    (RegisterNumber(7), 56..64),
    (RegisterNumber(16), 128..136),
];

/// The target description for gdb and lldb.
fn description() -> String {
    let mut x = String::from(
        "<?xml version=\"1.0\"?><!DOCTYPE target SYSTEM \"gdb-target.dtd\"><target version=\"1.0\">\
         <architecture>i386:x86-64</architecture><osabi>GNU/Linux</osabi>\
         <feature name=\"org.gnu.gdb.i386.core\">\
         <flags id=\"i386_eflags\" size=\"4\">",
    );
    for (name, bit) in ulpf_lib::eflags::NAMES {
        let _ = write!(x, "<field name=\"{name}\" start=\"{bit}\" end=\"{bit}\"/>");
    }
    x += "</flags>";
    let mut reg = |name: &str, bits: u32, kind: &str| {
        let _ = write!(
            x,
            "<reg name=\"{name}\" bitsize=\"{bits}\" type=\"{kind}\"/>"
        );
    };
    for name in ["rax", "rbx", "rcx", "rdx", "rsi", "rdi"] {
        reg(name, 64, "int64");
    }
    reg("rbp", 64, "data_ptr");
    reg("rsp", 64, "data_ptr");
    for n in 8..16 {
        reg(&format!("r{n}"), 64, "int64");
    }
    reg("rip", 64, "code_ptr");
    reg("eflags", 32, "i386_eflags");
    for name in ["cs", "ss", "ds", "es", "fs", "gs"] {
        reg(name, 32, "int32");
    }
    for n in 0..8 {
        reg(&format!("st{n}"), 80, "i387_ext");
    }
    for name in [
        "fctrl", "fstat", "ftag", "fiseg", "fioff", "foseg", "fooff", "fop",
    ] {
        reg(name, 32, "int");
    }
    x += "</feature><feature name=\"org.gnu.gdb.i386.sse\">\
          <vector id=\"v4f\" type=\"ieee_single\" count=\"4\"/><vector id=\"v2d\" type=\"ieee_double\" count=\"2\"/>\
          <vector id=\"v16i8\" type=\"int8\" count=\"16\"/><vector id=\"v8i16\" type=\"int16\" count=\"8\"/>\
          <vector id=\"v4i32\" type=\"int32\" count=\"4\"/><vector id=\"v2i64\" type=\"int64\" count=\"2\"/>\
          <union id=\"vec128\"><field name=\"v4_float\" type=\"v4f\"/><field name=\"v2_double\" type=\"v2d\"/>\
          <field name=\"v16_int8\" type=\"v16i8\"/><field name=\"v8_int16\" type=\"v8i16\"/>\
          <field name=\"v4_int32\" type=\"v4i32\"/><field name=\"v2_int64\" type=\"v2i64\"/>\
          <field name=\"uint128\" type=\"uint128\"/></union>";
    for n in 0..16 {
        let _ = write!(x, "<reg name=\"xmm{n}\" bitsize=\"128\" type=\"vec128\"/>");
    }
    x += "<reg name=\"mxcsr\" bitsize=\"32\" type=\"int\" group=\"vector\"/></feature>\
          <feature name=\"org.gnu.gdb.i386.linux\"><reg name=\"orig_rax\" bitsize=\"64\" type=\"int\"/></feature>\
          <feature name=\"org.gnu.gdb.i386.segments\"><reg name=\"fs_base\" bitsize=\"64\" type=\"int\"/>\
          <reg name=\"gs_base\" bitsize=\"64\" type=\"int\"/></feature></target>";
    x
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registers;

    #[test]
    fn the_description_has_all_registers() {
        let all = description();
        let bits: usize = all
            .split("bitsize=\"")
            .skip(1)
            .map(|rest| rest.split('"').next().unwrap().parse::<usize>().unwrap())
            .sum();
        assert_eq!(bits, 8 * registers::SIZE);
        assert_eq!(all.matches("<reg ").count(), 60);
    }
}
