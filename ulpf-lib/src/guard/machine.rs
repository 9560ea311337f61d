//! The mechanism of the guards: mprotect(2), the kernel module's device (`/dev/ulpf`), or protection keys.
//!
//! With the device, moved memory lies in its store, and its primary mapping is one of the device's. The mapping keeps the
//! program's own protection, and the guard is a separate permission. So guards are set and cleared in batches and split
//! no mapping, and a forbidden access may enter a handler without a signal. The rest is as with a memfd: the store is a
//! file, offset = virtual address, and the alias windows map it. Memory that the program itself shares is still guarded
//! with mprotect(2).
//!
//! With protection keys (used by the library, not by a stub) the primary mapping also keeps its protection, and has one
//! of two keys. Each thread sets for itself which accesses these keys forbid.

#![allow(unsafe_code)]

use super::os;
use crate::device::{self, Device, Permission, Unusable};
use crate::pages::Guard;

/// How the device is to be used, if it is there.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceUse {
    /// Guard nothing without it.
    pub required: bool,
    /// Features that the machine must have beside those that guards need ([`FEATURES`]).
    pub features: u64,
    /// Address of the handler, or 0: forbidden accesses are SIGSEGV.
    pub entry: u64,
    /// `device::HANDLER_*` bits.
    pub handler_flags: u32,
    /// `device::POLICY_*`
    pub policy: u32,
}

/// Without these no guard can live on the device.
pub const FEATURES: u64 = device::FEATURE_READ | device::FEATURE_STORE;

/// The mechanism of the guards.
#[derive(Debug)]
pub enum Machine {
    /// Nothing has been guarded so far.
    Undecided,
    /// mprotect(2), with the reason why the device was not used, if it was requested.
    Signals(Option<Unusable>),
    /// Permissions of the kernel module's device.
    Device(Device),
    /// Protection keys (a library's only).
    Keys(Keys),
}

/// Protection keys of guarded pages.
#[derive(Clone, Copy, Debug)]
pub struct Keys {
    /// The key that forbids stores.
    pub no_write: u32,
    /// The key that forbids all accesses.
    pub no_access: u32,
}

impl Keys {
    pub(super) fn of(self, guard: Option<Guard>) -> u32 {
        match guard {
            None => 0,
            Some(Guard::NoWrite) => self.no_write,
            Some(Guard::NoAccess) => self.no_access,
        }
    }
}

/// Opens the device with these settings; returns it and the store for moved memory.
pub(super) fn open(how: DeviceUse) -> Result<(Device, os::File), Unusable> {
    let device = Device::open(FEATURES | how.features)?;
    let strange = Unusable::Strange;
    if how.policy != 0 {
        device.policy(how.policy).map_err(strange)?;
    }
    if how.entry != 0 {
        // SAFETY: promised to `use_device`.
        unsafe { device.handler(how.entry, 0, how.handler_flags) }.map_err(strange)?;
    }
    let store = device.store().map_err(strange)?;
    Ok((device, os::File::of(store)))
}

pub(super) fn permission(guard: Option<Guard>) -> Permission {
    match guard {
        None => Permission::ReadWrite,
        Some(Guard::NoWrite) => Permission::ReadOnly,
        Some(Guard::NoAccess) => Permission::None,
    }
}
