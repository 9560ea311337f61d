//! Records what a walk up the stack depends on. A stack with the same values has the same callers ([`crate::backtraces`]).

use ulpf_lib::PAGE_SIZE;
use ulpf_stub_tables::backtrace_cache::{Stack, Top, Word};
use ulpf_stub_tables::rows::{CfaRule, Row};

use crate::cached_unwind::Frame;

/// A stack that covers more pages is walked each time.
const MOST_PAGES: u64 = 8;

pub struct Walk {
    pub stack: Stack,
    /// All steps used remembered rows, so that all dependencies are known.
    pub is_whole: bool,
    /// The offset from rsp of the word that gave the frame's rbp; `None` if rbp is the register itself.
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

    /// Records a step from `frame` to `caller`, by this row.
    pub fn step(&mut self, row: Row, frame: Frame, caller: Frame) {
        if !self.is_whole {
            return;
        }
        if row.cfa == CfaRule::Rbp {
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
