//! Closing and opening the pages of a [`Guards`] by what its guards are made of (`machine.rs`).

#![allow(unsafe_code)]

use alloc::vec::Vec;

use super::machine::{DeviceUse, Keys, Machine, open, permission};
use super::{Guards, Moved, Origin, os, refuse};
use crate::device::{self, Device, Op};
use crate::refusal::Refusal;
use crate::sys::Errno;

impl Guards {
    /// From now on guards are protection keys. Before the first guard only.
    pub fn use_keys(&mut self, keys: Keys) {
        self.machine = Machine::Keys(keys);
    }

    fn keys(&self) -> Option<Keys> {
        match self.machine {
            Machine::Keys(keys) => Some(keys),
            _ => None,
        }
    }

    /// From now on guards live on the device, if it is there. Before the first guard only.
    ///
    /// # Safety
    /// `how.entry` is 0, or keeps to the rules of a handler.
    pub unsafe fn use_device(&mut self, how: DeviceUse) {
        self.device_use = Some(how);
    }

    /// From now on forbidden accesses raise SIGSEGV.
    pub fn no_handler(&mut self) {
        if let Some(how) = &mut self.device_use {
            how.entry = 0;
        }
        if let Machine::Device(device) = &self.machine {
            let _ = device.no_handler();
        }
    }

    /// Whether a forbidden access enters a handler without a signal.
    pub fn has_handler(&self) -> bool {
        matches!(self.machine, Machine::Device(_)) && self.device_use.is_some_and(|u| u.entry != 0)
    }

    /// The mechanism of the guards.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Chooses the mechanism of the guards. Returns the store if it is the device.
    pub(super) fn decide(&mut self) -> Result<Option<os::File>, Refusal> {
        if self.keys().is_some() {
            return Ok(None);
        }
        let Some(how) = self.device_use else {
            self.machine = Machine::Signals(None);
            return Ok(None);
        };
        match open(how) {
            Ok((device, store)) => {
                self.machine = Machine::Device(device);
                Ok(Some(store))
            }
            Err(why) if how.required => Err(refuse::no_device(why)),
            Err(why) => {
                self.machine = Machine::Signals(Some(why));
                Ok(None)
            }
        }
    }

    /// The device, if it guards such pages.
    fn device_of(&self, moved: &Moved) -> Option<&Device> {
        match &self.machine {
            Machine::Device(device) if moved.origin != Origin::Shared => Some(device),
            _ => None,
        }
    }

    /// The protection that the primary mapping of moved pages has.
    pub(super) fn mapped_prot(&self, moved: &Moved) -> u8 {
        match self.device_of(moved) {
            None if self.keys().is_none() => moved.effective(),
            _ => moved.prot,
        }
    }

    /// Key of pages whose guards one call can change together.
    pub(super) fn alike(&self, moved: &Moved) -> (bool, u8) {
        if let Some(keys) = self.keys() {
            return (true, (keys.of(moved.guard) as u8) << 3 | moved.prot & 7);
        }
        match self.device_of(moved) {
            Some(_) => (true, permission(moved.guard) as u8),
            None => (false, moved.effective()),
        }
    }

    /// Puts the primary mapping of moved memory over the pages at `addr`.
    pub(super) fn map_primary(&self, addr: u64, len: u64, prot: u8) -> Result<(), Errno> {
        match (&self.machine, &self.file) {
            (Machine::Device(device), _) => os::map_over(
                device.descriptor(),
                addr,
                len,
                prot,
                device::MAP_GUARD + addr,
            ),
            (_, Some(file)) => file.map_over(addr, len, prot, addr),
            _ => Err(Errno(linux_raw_sys::errno::EBADF as i32)),
        }
    }

    /// Lifts the guards of a run for a while, or sets them again.
    pub(super) fn open_run(&self, start: u64, end: u64, moved: &Moved, open: bool) {
        if let Some(keys) = self.keys() {
            let key = keys.of(moved.guard.filter(|_| !open));
            let _ = os::protect_by_key(start, end - start, moved.prot, key);
            return;
        }
        let _ = match self.device_of(moved) {
            Some(_) if moved.guard.is_none() => Ok(()),
            Some(device) => {
                let guard = if open { None } else { moved.guard };
                device.apply(&Op::set(start, end, permission(guard)))
            }
            None if moved.effective() == moved.prot => Ok(()),
            None => {
                let prot = if open { moved.prot } else { moved.effective() };
                os::protect(start, end - start, prot)
            }
        };
    }

    /// Takes the guard of a run of shared pages away for good.
    pub(super) fn lift(&self, start: u64, end: u64, moved: &Moved) -> Result<(), Errno> {
        match self.keys() {
            _ if moved.effective() == moved.prot => Ok(()),
            Some(_) => os::protect_by_key(start, end - start, moved.prot, 0),
            None => os::protect(start, end - start, moved.prot),
        }
    }

    /// Sets the guard of each range; returns the address and error of each failure.
    pub(super) fn close_all(&self, ranges: &[(u64, u64, Moved)]) -> Vec<(u64, Errno)> {
        let mut failed = Vec::new();
        let mut ops = Vec::new();
        for (start, end, moved) in ranges {
            if let Some(keys) = self.keys() {
                let key = keys.of(moved.guard);
                if let Err(e) = os::protect_by_key(*start, end - start, moved.prot, key) {
                    failed.push((*start, e));
                }
            } else if self.device_of(moved).is_some() {
                ops.push(Op::set(*start, *end, permission(moved.guard)));
            } else if let Err(e) = os::protect(*start, end - start, moved.effective()) {
                failed.push((*start, e));
            }
        }
        if let Machine::Device(device) = &self.machine {
            let mut left = &ops[..];
            while let Err((done, e)) = device.batch(left) {
                let Some(bad) = left.get(done) else { break };
                failed.push((bad.addr, e));
                left = &left[done + 1..];
            }
        }
        failed.sort_unstable_by_key(|f| f.0);
        failed
    }
}
