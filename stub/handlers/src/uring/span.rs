//! A stretch of memory that a request reads or writes.

use ulpf_lib::AccessKind;

/// Bit in the number of a ring, for a buffer that was given to it.
pub const GIVEN: u8 = 1 << 7;

/// The number under which a buffer of a group is noted.
pub fn key(group: u16, number: u16) -> u64 {
    u64::from(group) << 16 | u64::from(number)
}

/// The part of a span that a request touches, by its result.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Moves {
    /// All of it, if the request succeeds.
    Whole,
    /// As many bytes as the result, in the order of the spans.
    Result,
    /// This many bytes for each unit of the result.
    Times(u16),
}

/// A span; spans are in the request's order. The first one has the fields of the request.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Span {
    pub at: u64,
    pub len: u64,
    pub user_data: u64,
    /// Old values of watched bytes of the request.
    pub kept: u64,
    pub request: u32,
    /// The next span of the request.
    pub next: u32,
    /// The next request of the list that this one is in; for a free span, the next free one.
    pub chain: u32,
    /// The number of completed requests with this number, while others with it have not completed.
    pub ended: u32,
    /// The linked requests before and behind it: span and number.
    pub before: (u32, u32),
    pub after: (u32, u32),
    pub result: i32,
    /// It takes, gives or removes buffers of this group.
    pub group: Option<u16>,
    pub ring: u8,
    pub opcode: u8,
    pub moves: Moves,
    /// The kernel has made a copy: no memory is held.
    pub copied: bool,
    pub kind: AccessKind,
    pub live: bool,
    /// The first span of its request.
    pub first: bool,
    /// Completed, and not reported yet.
    pub done: bool,
    /// The exact number of touched bytes is known.
    pub known: bool,
    /// Only its failure posts a completion (IOSQE_CQE_SKIP_SUCCESS).
    pub skips: bool,
    /// If it succeeds, it transfers everything, since a short transfer would break its chain. `all` is its result then.
    pub whole: bool,
    pub all: i32,
    /// The number of touched bytes, if any.
    pub touched: Option<u64>,
}

impl Span {
    /// A span for a request without memory.
    pub fn without_memory(ring: u8, request: u32, user_data: u64) -> Span {
        Span {
            at: 0,
            len: 0,
            user_data,
            kept: 0,
            request,
            next: 0,
            chain: 0,
            ended: 0,
            before: (0, 0),
            after: (0, 0),
            result: 0,
            group: None,
            ring,
            opcode: u8::MAX,
            moves: Moves::Whole,
            copied: true,
            kind: AccessKind::Read,
            live: true,
            first: true,
            done: false,
            known: true,
            skips: false,
            whole: false,
            all: 0,
            touched: None,
        }
    }

    /// True for the first span of a request in flight.
    pub fn waits(&self) -> bool {
        self.live && self.first && !self.done
    }

    /// Sets the result of its request; `left` bytes of it remain for this span and the following ones.
    pub fn ends(&mut self, result: i32, left: &mut u64) {
        (self.done, self.result) = (true, result);
        let n = match self.moves {
            _ if result < 0 => 0,
            Moves::Whole => self.len,
            Moves::Times(size) => (result as u64 * u64::from(size)).min(self.len),
            Moves::Result => {
                let n = self.len.min(*left);
                *left -= n;
                n
            }
        };
        self.touched = (n > 0).then_some(n);
    }
}
