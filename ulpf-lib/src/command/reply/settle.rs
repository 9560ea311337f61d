//! State that a debugger has to update, because the stub decided about its own watches (`ulpf settle`).

use alloc::vec::Vec;
use core::fmt;

use crate::watch::{WatchKind, WatchRange};

/// `{"settle":[{"start":16448,"len":4,"kind":"w","skipped":3}],"look":false}`
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settle {
    /// One entry for each condition that has rejected hits that the debugger would have counted or recorded.
    pub of: Vec<Settled>,
    /// The debugger may have moved its watches since their conditions were set, and should check them.
    pub look: bool,
}

/// The bytes of one condition. The debugger reads them to learn their present value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settled {
    /// The bytes.
    pub range: WatchRange,
    /// Of watches of this kind.
    pub kind: WatchKind,
    /// Number of hits that have counted towards `skip` since the last report.
    pub skipped: u64,
}

impl fmt::Display for Settle {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("{\"settle\":[")?;
        for (n, s) in self.of.iter().enumerate() {
            let comma = if n > 0 { "," } else { "" };
            write!(
                f,
                "{comma}{{\"start\":{},\"len\":{},\"kind\":\"{}\",\"skipped\":{}}}",
                s.range.start.0,
                s.range.len,
                s.kind.word(),
                s.skipped
            )?;
        }
        write!(f, "],\"look\":{}}}", self.look)
    }
}
