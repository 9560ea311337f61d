// SPDX-License-Identifier: GPL-2.0-or-later
//! /dev/ulpf: kernel/include/uapi/ulpf.h on the machine. Here is what the machine keeps; calls are
//! in `calls.rs`, changes in `ops.rs`, mappings in `mapping.rs`, events in `events.rs` and `ring.rs`, what the kernel
//! touches and guard ranges in `access.rs`.
//!
//! A process may have several spaces. They share the user's tables, since permissions belong to addresses;
//! of CR18 the machine has one for each, as if its kernel had a dispatcher there.
//! It does not claim ULPF_FEATURE_EXE and ULPF_FEATURE_PLI_TIGHTEN.

mod access;
pub mod calls;
pub mod events;
pub mod mapping;
pub mod ops;
mod ring;

use ring::Ring;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsRawFd, OwnedFd};
use ulpf_lib::device::abi;

/// Of the features of the header those that the machine has.
const FEATURES: u64 = abi::FEATURE_READ
    | abi::FEATURE_PLI_LOOSEN
    | abi::FEATURE_ONCE
    | abi::FEATURE_STACK
    | abi::FEATURE_KERNEL
    | abi::FEATURE_GUARD
    | abi::FEATURE_STORE
    | abi::FEATURE_SIGSTACK
    | abi::FEATURE_EFAULT;
const BATCH_MAX: u32 = 65536;
/// Bytes of address space that a region governs.
const PREFIX: u64 = 1 << abi::REGION_SHIFT;

/// One space: what one open() has made.
#[derive(Default)]
pub struct Device {
    /// This process has opened it; a forked child has not.
    stranger: bool,
    pub nonblocking: bool,
    /// Stores and PLI pages: sparse files of this process, mapped as often as the program likes.
    store: Option<OwnedFd>,
    pli: Option<OwnedFd>,
    /// PLI mappings: start and end.
    pli_maps: Vec<(u64, u64)>,
    pub handler: Option<Handler>,
    /// ULPF_POLICY_EFAULT.
    refuses: bool,
    pub counts: abi::Counts,
    ring: Option<Ring>,
}

#[derive(Clone, Copy)]
pub struct Handler {
    pub entry: u64,
    pub cookie: u64,
    /// ULPF_HANDLER_ONCE, ULPF_HANDLER_SIGSTACK.
    once: bool,
    pub on_signal_stack: bool,
}

/// The process's spaces.
#[derive(Default)]
pub struct Devices {
    all: BTreeMap<u32, Device>,
    last: u32,
    /// Marks of ULPF_OP_GUARD (`abi::GUARD_*`), by page number.
    guards: HashMap<u64, u32>,
    /// Pages for which the present system call has made an event.
    reported: Vec<u64>,
}

impl Devices {
    pub fn open(&mut self) -> u32 {
        self.last += 1;
        self.all.insert(self.last, Device::default());
        self.last
    }

    /// The space of a descriptor or a mapping, which keep it.
    pub fn of(&mut self, id: u32) -> &mut Device {
        self.all.entry(id).or_default()
    }

    /// Whether anything is guarded here.
    pub fn is_ours(&self) -> bool {
        self.all.values().any(|d| !d.stranger)
    }

    /// Device and inode of a space's store.
    pub fn store_of(&self, id: u32) -> (u64, u64) {
        let store = self.all.get(&id).and_then(|d| d.store.as_ref());
        let Some(fd) = store.map(|f| f.as_raw_fd()) else {
            return (0, 0);
        };
        // SAFETY: a structure of ours.
        unsafe {
            let mut status: libc::stat = std::mem::zeroed();
            match libc::fstat(fd, &raw mut status) {
                0 => (status.st_dev, status.st_ino),
                _ => (0, 0),
            }
        }
    }

    /// In a child: what is mapped is shared memory, nothing is guarded, and nothing can be changed.
    pub fn forked(&mut self) {
        for d in self.all.values_mut() {
            (d.stranger, d.handler) = (true, None);
        }
        self.guards.clear();
    }

    /// The program is about to have another one.
    pub fn close(&mut self) {
        for ring in self
            .all
            .values()
            .filter(|d| !d.stranger)
            .filter_map(|d| d.ring)
        {
            ring.close();
        }
    }
}
