//! The buffers of one call, and the words that the kernel knows by their address.

use ulpf_lib::syscalls::row::{Buf, Dir, Len};

use super::commands::Memory;
use crate::global::g;

/// The list of buffers of a call.
pub struct List {
    one: [Buf; 1],
    fixed: Option<&'static [Buf]>,
}

impl List {
    pub fn of(m: Memory) -> List {
        let none = Buf {
            arg: 0,
            dir: Dir::In,
            len: Len::Fixed(0),
        };
        match m {
            Memory::Buffers(fixed) => List {
                one: [none],
                fixed: Some(fixed),
            },
            Memory::One(one) => List {
                one: [one],
                fixed: None,
            },
            _ => List {
                one: [none],
                fixed: Some(&[]),
            },
        }
    }
    pub fn iter(&self) -> core::slice::Iter<'_, Buf> {
        self.fixed.unwrap_or(&self.one).iter()
    }
}

/// The address by which the kernel knows a futex word.
pub fn word(addr: u64) -> u64 {
    g().alias_of(addr).map_or(addr, |a| a.0)
}
