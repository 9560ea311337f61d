//! A hit, as a back end tells of it.

use crate::bytes::Bytes;
use serde::{Deserialize, Serialize};

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hit {
    /// Hits are numbered from 1.
    pub sequence: u64,
    pub watch: u64,
    /// The instruction that made the access (not the one behind it).
    pub pc: u64,
    pub thread: u64,
    /// A write; else a read.
    pub write: bool,
    /// What of the watch was accessed; of a long access `old` and `new` have the beginning.
    pub addr: u64,
    pub len: u64,
    pub old: Bytes,
    pub new: Bytes,
    /// By the kernel, in a system call.
    #[serde(default)]
    pub system_call: bool,
}
