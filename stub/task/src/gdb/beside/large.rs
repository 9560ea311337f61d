//! Watched objects that GDB cannot hold.
//!
//! GDB reads no value larger than `max-value-size` (64 KiB unless changed). It inserts a watch on such an object all
//! the same, but has nothing to compare at a hit, and silently goes on. The stub detects that: GDB reads the value of a
//! watch at every hit, so a resume without that read means that it could not.

use crate::gdb::packet;
use alloc::format;
use alloc::vec::Vec;
use ulpf_lib::{TargetAddr, WatchRange};

/// GDB's default.
const MAX_VALUE_SIZE: u64 = 64 << 10;
/// More such watches than users set; further ones go unexplained.
const MAX_WATCHES: usize = 256;

#[derive(Default)]
pub struct LargeWatches {
    /// Ranges above the default limit, and whether the user knows about each.
    seen: Vec<(WatchRange, bool)>,
    /// The last stop was a hit here, and the debugger has not read the value yet.
    unread: Option<(WatchRange, TargetAddr)>,
}

impl LargeWatches {
    pub fn inserted(&mut self, range: WatchRange) {
        let known = self.seen.len() >= MAX_WATCHES || self.seen.iter().any(|(r, _)| *r == range);
        if range.len > MAX_VALUE_SIZE && !known {
            self.seen.push((range, false));
        }
    }

    pub fn hit(&mut self, addr: TargetAddr) {
        let range = self
            .seen
            .iter()
            .find(|(r, reported)| !reported && r.overlaps(addr, 1));
        self.unread = range.map(|(r, _)| (*r, addr));
    }

    /// Returns whether the debugger's reads have to be watched.
    pub fn waits(&self) -> bool {
        self.unread.is_some()
    }

    /// A memory read of the debugger: `ADDR,LEN`.
    pub fn read(&mut self, request: &[u8]) {
        let Some((addr, len)) = packet::addr_len(request) else {
            return;
        };
        self.unread = self
            .unread
            .filter(|(_, at)| !(addr <= at.0 && at.0 - addr < len));
    }

    /// The debugger resumes: what to tell the user, once per object.
    pub fn resumed(&mut self) -> Option<Vec<u8>> {
        let (range, addr) = self.unread.take()?;
        let entry = self.seen.iter_mut().find(|(r, _)| *r == range)?;
        entry.1 = true;
        let text = format!(
            "ulpf: the watch on the {} bytes at {} was hit at {addr}, but GDB did not stop: the object is \
             larger than its max-value-size. Use \"set max-value-size unlimited\" and set the watch again.\n",
            range.len, range.start
        );
        Some(text.into_bytes())
    }
}
