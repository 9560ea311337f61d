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
    /// What stood there before and what stands there now, if known.
    pub old: Option<&'a [u8]>,
    pub new: Option<&'a [u8]>,
    /// The same, for a system call.
    pub kept: Option<&'a Kept>,
    pub syscall: Option<&'a Call>,
    /// The locks of its pages were held while it was made (`crate::locks`).
    pub locked: bool,
}

impl Cause<'static> {
    /// An access that is about to be made.
    pub fn ahead(pc: u64, addr: TargetAddr, len: u64, kind: AccessKind) -> Cause<'static> {
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
