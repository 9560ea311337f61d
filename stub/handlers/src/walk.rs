//! What a walk up the stack depends on: whoever finds the same again has the same callers ([`crate::stacks`]).

use ulpf_lib::PAGE_SIZE;
use ulpf_stub_tables::rows::{Row, Way};
use ulpf_stub_tables::stacks::{Stack, Top, Word};

use crate::frames::Frame;

/// A stack that goes over more pages is walked each time.
const MOST_PAGES: u64 = 8;

pub struct Walk {
    pub stack: Stack,
    /// By what is remembered of places alone, so that all that it depends on is known.
    pub is_whole: bool,
    /// Where rbp of the frame is from: how far from rsp; `None`: it is the register's.
    bp_from: Option<u64>,
}

impl Walk {
    pub fn begin(top: Top) -> Walk {
        Walk {
            stack: Stack::begin(top),
            is_whole: true,
            bp_from: None,
        }
    }

    /// A step from `frame` to `caller`, by this row.
    pub fn step(&mut self, row: Row, frame: Frame, caller: Frame) {
        if !self.is_whole {
            return;
        }
        if row.way == Way::Rbp {
            match self.bp_from {
                Some(away) => self.read(away, frame.bp),
                None => (self.stack.by_bp, self.stack.bp) = (1, frame.bp),
            }
        }
        let end = caller.sp.wrapping_sub(self.stack.top.sp);
        self.read(end.wrapping_sub(8), caller.ip);
        if row.rbp != 0 {
            self.bp_from = Some(end.wrapping_sub(row.rbp.into()));
        }
    }

    fn read(&mut self, away: u64, value: u64) {
        self.is_whole &=
            away < MOST_PAGES * PAGE_SIZE && self.stack.depends_on(Word { away, value });
    }
}
