//! What a debugger has to make up for where its own watches are decided without it (`ulpf settle`).

use alloc::vec::Vec;
use core::fmt;

use crate::watch::{WatchKind, WatchRange};

/// `{"settle":[{"start":16448,"len":4,"kind":"w","skipped":3}],"look":false}`
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settle {
    /// Of each condition that has rejected hits which the debugger would have taken note of.
    pub of: Vec<Settled>,
    /// The debugger may have moved its watches since their conditions were set: are they still right?
    pub look: bool,
}

/// The bytes of one condition. What the debugger reads there now is what it would know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settled {
    /// The bytes.
    pub range: WatchRange,
    /// Of watches of this kind.
    pub kind: WatchKind,
    /// So many hits have counted towards `skip` since this was told the last time.
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
