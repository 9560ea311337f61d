//! A stretch of memory that a request reads or writes.

use ulpf_lib::AccessKind;

/// Beside the number of a ring: a buffer that it has been given.
pub const GIVEN: u8 = 1 << 7;

/// A buffer of a group, as the number of a completion.
pub fn key(group: u16, number: u16) -> u64 {
    u64::from(group) << 16 | u64::from(number)
}

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

/// In the order of a request's spans; what is said of the request stands in its first.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Span {
    pub at: u64,
    pub len: u64,
    pub user_data: u64,
    /// Old values of what is watched in the request.
    pub kept: u64,
    pub request: u32,
    /// The next span of the request.
    pub next: u32,
    /// The next request of the list that this one is in; of one that is free, the next that is.
    pub chain: u32,
    /// How many requests with this number have completed, while others have not.
    pub ended: u32,
    /// The requests before and behind it that are linked with it: where they are, their numbers.
    pub before: (u32, u32),
    pub after: (u32, u32),
    pub result: i32,
    /// It takes, gives or removes buffers of this group.
    pub group: Option<u16>,
    pub ring: u8,
    pub opcode: u8,
    pub moves: Moves,
    /// The kernel has made a copy: nothing is held.
    pub copied: bool,
    pub kind: AccessKind,
    pub live: bool,
    /// The first of its request.
    pub first: bool,
    /// Completed, and not reported yet.
    pub done: bool,
    /// How much was touched is known.
    pub known: bool,
    /// Only its failure is told (IOSQE_CQE_SKIP_SUCCESS).
    pub skips: bool,
    /// If it succeeds, all of it is touched: otherwise what is linked to it would not be done. The result, then.
    pub whole: bool,
    pub all: i32,
    /// How much was touched, if anything.
    pub touched: Option<u64>,
}

impl Span {
    /// Of a request without any.
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

    /// The first span of a request in flight.
    pub fn waits(&self) -> bool {
        self.live && self.first && !self.done
    }

    /// Its request has this result, of which so many bytes are left for this and the following spans.
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
