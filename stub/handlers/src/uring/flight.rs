//! Requests in flight, and the memory that they hold.
//!
//! A request is noted before the kernel gets it, and forgotten at its completion. Completions carry the program's own
//! number, which may be that of several requests: these are forgotten together, when all have completed.

use core::ptr::null_mut;

use linux_raw_sys::io_uring as u;
use ulpf_lib::AccessKind;

use super::kept;

const SPANS: usize = 16384;

/// How much of a span a request touches, by its result.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Moves {
    /// All of it when it succeeds.
    Whole,
    /// As many bytes as the result says, in the order of the spans.
    Result,
    /// So many bytes for each that the result counts.
    Times(u16),
}

/// A stretch of memory that a request reads or writes.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Span {
    pub at: u64,
    pub len: u64,
    /// Of the whole request, and the same in each of its spans.
    pub user_data: u64,
    /// Old values of what is watched in the request, in its first span.
    pub kept: u64,
    pub request: u32,
    /// How many requests with this number have completed, while others have not.
    pub ended: u32,
    pub result: i32,
    pub ring: u8,
    pub opcode: u8,
    pub moves: Moves,
    /// The kernel has made a copy: nothing is held.
    pub copied: bool,
    pub kind: AccessKind,
    /// The first of its request.
    pub first: bool,
    /// Completed, and not reported yet.
    pub done: bool,
    /// How much was touched is known.
    pub known: bool,
    /// How much was touched, if anything.
    pub touched: Option<u64>,
}

pub struct Flight {
    spans: *mut Span,
    len: usize,
    last: u32,
}

// SAFETY: only under the lock of `rings::with`.
unsafe impl Send for Flight {}

impl Flight {
    pub const NONE: Flight = Flight {
        spans: null_mut(),
        len: 0,
        last: 0,
    };

    /// Makes room, once.
    pub fn begin(&mut self) -> bool {
        if self.spans.is_null() {
            self.spans = ulpf_lib::arena::map_anonymous(SPANS * size_of::<Span>()).cast();
        }
        !self.spans.is_null()
    }

    pub fn spans(&mut self) -> &mut [Span] {
        match self.spans.is_null() {
            true => &mut [],
            // SAFETY: so many were written.
            false => unsafe { core::slice::from_raw_parts_mut(self.spans, self.len) },
        }
    }

    pub fn next_request(&mut self) -> u32 {
        self.last = self.last.wrapping_add(1);
        self.last
    }

    pub fn add(&mut self, mut span: Span) -> bool {
        if self.spans.is_null() || self.len == SPANS {
            return false;
        }
        span.ended = 0;
        // SAFETY: there is room.
        unsafe { self.spans.add(self.len).write(span) };
        self.len += 1;
        true
    }

    pub fn forget(&mut self, which: impl Fn(&Span) -> bool) {
        let mut to = 0;
        for from in 0..self.len {
            // SAFETY: below the length.
            unsafe {
                let span = *self.spans.add(from);
                if which(&span) {
                    if span.kept != 0 {
                        kept::free(span.kept);
                    }
                    continue;
                }
                self.spans.add(to).write(span);
            }
            to += 1;
        }
        self.len = to;
    }

    /// How many spans there are.
    pub fn noted(&self) -> usize {
        self.len
    }

    /// Forgets the last ones, for which no old values have been kept.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    pub fn forget_ring(&mut self, ring: u8) {
        self.forget(|s| s.ring == ring);
    }

    /// A completion. The request that it ends, if it is the only one of its number.
    pub fn complete(&mut self, ring: u8, user_data: u64, flags: u32) -> Completed {
        if flags & u::IORING_CQE_F_MORE != 0 {
            return Completed::Nothing;
        }
        let here = |s: &Span| !s.done && s.ring == ring && s.user_data == user_data && s.first;
        let mut all = self.spans().iter_mut().filter(|s| here(s));
        let Some(first) = all.next() else {
            return Completed::Nothing;
        };
        let others = all.count() as u32;
        let first = match others {
            0 => return Completed::One(first.request),
            _ => self.spans().iter_mut().find(|s| here(s)),
        };
        let Some(first) = first else {
            return Completed::Nothing;
        };
        first.ended += 1;
        match first.ended > others {
            true => Completed::All,
            false => Completed::Nothing,
        }
    }

    /// The only request of its number has completed.
    pub fn done(&mut self, request: u32, result: i32) {
        let mut left = result.max(0) as u64;
        for span in self
            .spans()
            .iter_mut()
            .filter(|s| s.request == request && !s.done)
        {
            span.done = true;
            span.result = result;
            let n = match span.moves {
                _ if result < 0 => 0,
                Moves::Whole => span.len,
                Moves::Times(size) => (result as u64 * u64::from(size)).min(span.len),
                Moves::Result => {
                    let n = span.len.min(left);
                    left -= n;
                    n
                }
            };
            span.touched = (n > 0).then_some(n);
        }
    }

    /// Requests that cannot be told apart have completed.
    pub fn all_done(&mut self, ring: u8, user_data: u64) {
        self.unknown(&|s| s.ring == ring && s.user_data == user_data);
    }

    /// All requests of a ring have completed.
    pub fn ring_done(&mut self, ring: u8) {
        self.unknown(&|s| s.ring == ring);
    }

    fn unknown(&mut self, which: &dyn Fn(&Span) -> bool) {
        for span in self.spans().iter_mut().filter(|s| !s.done && which(s)) {
            (span.done, span.known) = (true, false);
            span.touched = Some(span.len);
        }
    }

    /// Takes a span of a completed request out: with its request's old values, and whether it is the last.
    pub fn take_done(&mut self) -> Option<(Span, u64, bool)> {
        let first = *self.spans().iter().find(|s| s.done)?;
        let mut of_request = self
            .spans()
            .iter()
            .enumerate()
            .filter(|(_, s)| s.request == first.request);
        let (n, span) = of_request.next_back().map(|(n, s)| (n, *s))?;
        let kept = self
            .spans()
            .iter()
            .find(|s| s.request == first.request && s.first)
            .map_or(0, |s| s.kept);
        // The order of a request's spans does not matter any more, that of others must stay.
        let len = self.len;
        // SAFETY: within the spans.
        unsafe { core::ptr::copy(self.spans.add(n + 1), self.spans.add(n), len - n - 1) };
        self.len -= 1;
        Some((span, kept, span.first))
    }

    /// Keeps the old values of what is watched where a request may write: the last one, whose spans begin here.
    pub fn keep_old(&mut self, from: usize) {
        let spans = self.spans().get_mut(from..).unwrap_or(&mut []);
        let mut written = spans
            .iter()
            .filter(|s| s.kind.writes())
            .map(|s| (s.at, s.len));
        let kept = kept::keep(&mut written);
        if let Some(first) = spans.iter_mut().find(|s| s.first) {
            first.kept = kept;
        }
    }

    /// May a request in flight touch `[start, end)`?
    pub fn meets(&mut self, start: u64, end: u64) -> bool {
        let meets =
            |s: &Span| !s.copied && !s.done && s.at < end && start < s.at.saturating_add(s.len);
        self.spans().iter().any(meets)
    }
}

pub enum Completed {
    Nothing,
    One(u32),
    All,
}

impl Span {
    /// A request without any.
    pub fn without_memory(ring: u8, request: u32, user_data: u64) -> Span {
        Span {
            at: 0,
            len: 0,
            user_data,
            kept: 0,
            request,
            ended: 0,
            result: 0,
            ring,
            opcode: u8::MAX,
            moves: Moves::Whole,
            copied: true,
            kind: AccessKind::Read,
            first: true,
            done: false,
            known: true,
            touched: None,
        }
    }
}
