//! gdbstub's view of an amd64 target: which registers exist is the target's affair ([`crate::registers`]). Here they are
//! numbers and bytes.

use alloc::vec::Vec;
use core::convert::Infallible;
use core::num::NonZeroUsize;
use gdbstub::arch::{Arch, RegId, Registers};
use gdbstub::conn::Connection;

pub enum Amd64 {}

impl Arch for Amd64 {
    type Usize = u64;
    type Registers = RegisterBytes;
    type BreakpointKind = usize;
    type RegId = RegisterNumber;
}

/// The `g` packet; `None` for a byte that is not available.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegisterBytes(pub Vec<Option<u8>>);

impl Registers for RegisterBytes {
    type ProgramCounter = u64;

    fn pc(&self) -> u64 {
        0 // gdbstub needs it for implicit breakpoints only, which are not used
    }
    fn gdb_serialize(&self, write_byte: impl FnMut(Option<u8>)) {
        self.0.iter().copied().for_each(write_byte);
    }
    fn gdb_deserialize(&mut self, bytes: &[u8]) -> Result<(), ()> {
        self.0 = bytes.iter().copied().map(Some).collect();
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

/// Keeps what gdbstub writes.
pub struct Capture(pub Vec<u8>);

impl Connection for Capture {
    type Error = Infallible;

    fn write(&mut self, byte: u8) -> Result<(), Infallible> {
        self.0.push(byte);
        Ok(())
    }
    fn flush(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
}
