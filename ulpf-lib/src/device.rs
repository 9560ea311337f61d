//! `/dev/ulpf`: user-level page faults by the machine itself. `kernel/include/uapi/ulpf.h` specifies the
//! interface in prose; its numbers and structures are in `abi.rs`.
//!
//! Raw system calls only, no allocation: a stub and a library that both live in other people's programs
//! use it, also in their handlers.
#![allow(unsafe_code)]

use core::ffi::CStr;

use linux_raw_sys::errno;
use linux_raw_sys::general::*;

use crate::sys;
use crate::sys::Errno;

// Each name is documented where it is specified: in the header.
#[allow(missing_docs)]
pub mod abi;

pub use abi::*;

/// Path of the device.
pub const PATH: &CStr = c"/dev/ulpf";

/// Accesses that a page forbids.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum Permission {
    /// Nothing.
    ReadWrite = RW,
    /// Stores.
    ReadOnly = RO,
    /// Loads and stores (`FEATURE_EXE`).
    Execute = EXE,
    /// Everything.
    None = NONE,
}

impl Op {
    /// `[start, end)`, whole pages of guarded mappings, shall have this permission.
    pub const fn set(start: u64, end: u64, permission: Permission) -> Op {
        Op {
            op: OP_SET,
            flags: 0,
            addr: start,
            length: end.wrapping_sub(start),
            arg: permission as u64,
        }
    }
}

/// Reason why the device cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unusable {
    /// open(2) has failed.
    Open(Errno),
    /// The file does not answer as the device does.
    Strange(Errno),
    /// The machine speaks this version of the interface.
    Version(u32),
    /// It lacks these of the requested features.
    Features(u64),
}

impl Unusable {
    /// The reason, for users.
    pub fn why(self) -> &'static str {
        match self {
            Unusable::Open(Errno(e)) => match e as u32 {
                errno::ENOENT | errno::ENXIO | errno::ENODEV => {
                    "there is no /dev/ulpf: the kernel module is not loaded"
                }
                errno::EACCES | errno::EPERM => "/dev/ulpf may not be opened by this user",
                errno::EMFILE | errno::ENFILE => "/dev/ulpf: too many open files",
                errno::ENOMEM => "/dev/ulpf: out of memory",
                _ => "/dev/ulpf cannot be opened",
            },
            Unusable::Strange(_) => "/dev/ulpf is not the device of ulpf's kernel module",
            Unusable::Version(_) => {
                "the kernel module speaks another version of the interface of /dev/ulpf"
            }
            Unusable::Features(_) => "the kernel module is too old: it lacks what is needed here",
        }
    }
    /// The remedy for the user.
    pub fn what_to_do(self) -> &'static str {
        match self {
            Unusable::Open(Errno(e)) => match e as u32 {
                errno::EACCES | errno::EPERM => {
                    "join the group that owns it (kernel/README.md), or have root load the module with mode=0666"
                }
                errno::EMFILE | errno::ENFILE | errno::ENOMEM => {
                    "raise the limit, or use the back end `signal`"
                }
                _ => "build and load it (kernel/README.md), or use the back end `signal`",
            },
            _ => "build and load the module of this version of ulpf (kernel/README.md)",
        }
    }
}

/// An open device: a guarded address space of this process's memory.
#[derive(Debug)]
pub struct Device(i32);

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours alone.
        let _ = unsafe { sys!(__NR_close, self.0) };
    }
}

impl Device {
    /// Opens it and checks that it has all of `features`.
    ///
    /// # Errors
    /// [`Unusable`] says which of the four reasons it is.
    pub fn open(features: u64) -> Result<Device, Unusable> {
        Device::open_at(PATH, features)
    }

    /// As [`Device::open`], for a device at another path.
    ///
    /// # Errors
    /// As [`Device::open`]'s.
    pub fn open_at(path: &CStr, features: u64) -> Result<Device, Unusable> {
        // SAFETY: the path is a C string; open touches no memory of ours.
        let fd = unsafe {
            sys!(
                __NR_openat,
                AT_FDCWD as i64,
                path.as_ptr(),
                O_RDWR | O_CLOEXEC,
                0
            )
        }
        .map_err(Unusable::Open)?;
        let device = Device(fd as i32);
        let query = device.query()?;
        match features & !query.features {
            0 => Ok(device),
            lacking => Err(Unusable::Features(lacking)),
        }
    }

    /// Its descriptor, for mmap(2).
    pub fn descriptor(&self) -> i32 {
        self.0
    }

    /// Features and limits of the machine.
    ///
    /// # Errors
    /// [`Unusable::Version`] from a machine of another version, [`Unusable::Strange`] with ioctl(2)'s error else.
    pub fn query(&self) -> Result<Query, Unusable> {
        let mut query = Query {
            size: size_of::<Query>() as u32,
            version: VERSION,
            ..Query::default()
        };
        // SAFETY: the structure that the call takes and fills.
        match unsafe { self.call(QUERY, &mut query) } {
            Ok(_) => Ok(query),
            Err(Errno(e)) if e as u32 == errno::EPROTONOSUPPORT => {
                Err(Unusable::Version(query.version))
            }
            Err(e) => Err(Unusable::Strange(e)),
        }
    }

    /// From now on forbidden accesses of the program enter `entry`, whose frames carry `cookie`.
    ///
    /// # Safety
    /// `entry` keeps to the rules of a handler (the header's "The upcall"), for as long as it is
    /// registered.
    ///
    /// # Errors
    /// EBUSY if one is registered and `HANDLER_REPLACE` is not given, EFAULT or EACCES if `entry` is not code,
    /// EOPNOTSUPP for a flag without its feature.
    pub unsafe fn handler(&self, entry: u64, cookie: u64, flags: u32) -> Result<(), Errno> {
        let mut handler = Handler {
            size: size_of::<Handler>() as u32,
            flags,
            entry,
            cookie,
        };
        // SAFETY: the structure that the call takes.
        unsafe { self.call(HANDLER, &mut handler) }.map(drop)
    }

    /// From now on forbidden accesses raise SIGSEGV.
    ///
    /// # Errors
    /// ENOENT without a registered handler.
    pub fn no_handler(&self) -> Result<(), Errno> {
        // SAFETY: registers nothing.
        unsafe { self.handler(0, 0, 0) }
    }

    /// `POLICY_*`, for the whole space.
    ///
    /// # Errors
    /// EINVAL for an unknown one.
    pub fn policy(&self, flags: u32) -> Result<(), Errno> {
        let mut policy = Policy {
            size: size_of::<Policy>() as u32,
            flags,
        };
        // SAFETY: the structure that the call takes.
        unsafe { self.call(POLICY, &mut policy) }.map(drop)
    }

    /// Makes one change.
    ///
    /// # Errors
    /// As the header says for each operation; then nothing has changed.
    pub fn apply(&self, op: &Op) -> Result<(), Errno> {
        let mut op = *op;
        // SAFETY: the structure that the call takes. Permissions only forbid: what then cannot be
        // accessed at its own address faults, and that is the handler's business.
        unsafe { self.call(APPLY, &mut op) }.map(drop)
    }

    /// Makes many changes in one system call, in order.
    ///
    /// # Errors
    /// The number of changes that were made, and the error of the next one.
    pub fn batch(&self, ops: &[Op]) -> Result<(), (usize, Errno)> {
        // Every machine accepts this number at once.
        const MOST: usize = 1024;
        let mut before = 0;
        for part in ops.chunks(MOST) {
            let mut batch = Batch {
                size: size_of::<Batch>() as u32,
                ops: part.as_ptr() as u64,
                count: part.len() as u32,
                op_size: size_of::<Op>() as u32,
                ..Batch::default()
            };
            // SAFETY: as for `apply`; the operations outlive the call.
            unsafe { self.call(BATCH, &mut batch) }
                .map_err(|e| (before + batch.done as usize, e))?;
            before += part.len();
        }
        Ok(())
    }

    /// Counters of events since the device was opened.
    ///
    /// # Errors
    /// That of ioctl(2).
    pub fn counts(&self) -> Result<Counts, Errno> {
        let mut counts = Counts {
            size: size_of::<Counts>() as u32,
            ..Counts::default()
        };
        // SAFETY: the structure that the call fills.
        unsafe { self.call(COUNTS, &mut counts) }.map(|_| counts)
    }

    /// A new descriptor of the store.
    ///
    /// # Errors
    /// EMFILE if no descriptor is left.
    pub fn store(&self) -> Result<i32, Errno> {
        // SAFETY: makes a descriptor, which is the caller's.
        unsafe { sys!(__NR_ioctl, self.0, STORE) }.map(|fd| fd as i32)
    }

    /// # Safety
    /// `T` is what the call takes.
    unsafe fn call<T>(&self, number: u32, arg: &mut T) -> Result<u64, Errno> {
        // SAFETY: the caller's promise.
        unsafe { sys!(__NR_ioctl, self.0, number, arg as *mut T) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn what_is_not_there_is_said() {
        let missing = Device::open_at(c"/dev/ulpf-that-is-not", 0).unwrap_err();
        assert_eq!(missing, Unusable::Open(Errno(2)));
        assert!(missing.why().contains("not loaded"));
        let strange = Device::open_at(c"/dev/null", 0).unwrap_err();
        assert_eq!(strange, Unusable::Strange(Errno(25)));
        let all: Vec<Unusable> = [2, 13, 24, 5]
            .into_iter()
            .map(|e| Unusable::Open(Errno(e)))
            .collect();
        assert!(
            all.iter()
                .all(|u| !u.why().is_empty() && !u.what_to_do().is_empty())
        );
    }
}
