//! One access that may be a hit.

use ulpf_lib::{AccessKind, TargetAddr};

use crate::runtime::thread::Call;
use crate::syscalls::scratch::Kept;

/// One access, however it was made.
pub struct Cause<'a> {
    pub pc: u64,
    pub addr: TargetAddr,
    pub len: u64,
    pub kind: AccessKind,
    /// The bytes before and after the access, if known.
    pub old: Option<&'a [u8]>,
    pub new: Option<&'a [u8]>,
    /// The same for a system call.
    pub kept: Option<&'a Kept>,
    pub syscall: Option<&'a Call>,
    /// The locks of its pages were held during the access (`crate::locks`).
    pub locked: bool,
}

impl Cause<'static> {
    /// An access that has not been made yet.
    pub fn before_access(pc: u64, addr: TargetAddr, len: u64, kind: AccessKind) -> Cause<'static> {
        Cause {
            pc,
            addr,
            len,
            kind,
            old: None,
            new: None,
            kept: None,
            syscall: None,
            locked: false,
        }
    }
}
