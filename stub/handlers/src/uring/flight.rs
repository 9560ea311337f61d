//! Requests in flight, and the memory that they hold.
//!
//! A request is noted before the kernel gets it, and forgotten at its completion. Completions carry the program's own
//! number, which several requests may share: these are forgotten together, when all have completed.
//!
//! ```text
//!  buckets[number] ─▶ first span ─chain─▶ first span of another request, an older one
//!                        │ next
//!                     second span …            queue of those that have completed: by `chain`, too
//! ```
//! All of it is protected by the lock of `rings::with`. A link is an index plus one, or 0 at the end of a list.

use core::ptr::null_mut;

use linux_raw_sys::io_uring as u;
use linux_raw_sys::io_uring::io_uring_op::*;
use ulpf_lib::sys::failure::ECANCELED;

use super::kept;
use super::skipped::Skipped;
use super::span::{GIVEN, key};
pub use super::span::{Moves, Span};

/// Limit of spans.
const SPANS: usize = 1 << 16;
const BUCKETS: usize = 1 << 12;

pub struct Flight {
    spans: *mut Span,
    buckets: *mut u32,
    /// The number of spans that have ever been used; the first free one of them.
    used: u32,
    free: u32,
    /// The request that is being noted: its first and its last span.
    new: (u32, u32),
    /// The requests that have completed: the first and the last one.
    done: (u32, u32),
    last: u32,
    /// The number of spans in use.
    live: usize,
    skipped: Skipped,
}

// SAFETY: only under the lock of `rings::with`.
unsafe impl Send for Flight {}

impl Flight {
    pub const NONE: Flight = Flight {
        spans: null_mut(),
        buckets: null_mut(),
        used: 0,
        free: 0,
        new: (0, 0),
        done: (0, 0),
        last: 0,
        live: 0,
        skipped: Skipped::NONE,
    };

    /// Maps the tables, once.
    pub fn begin(&mut self) -> bool {
        if self.spans.is_null() {
            let size = SPANS * size_of::<Span>() + BUCKETS * size_of::<u32>();
            self.spans = ulpf_lib::arena::map_anonymous(size).cast();
            self.buckets = self.spans.wrapping_add(SPANS).cast();
        }
        !self.spans.is_null()
    }

    fn at(&mut self, link: u32) -> Option<&mut Span> {
        let n = link.checked_sub(1).filter(|n| *n < self.used)?;
        // SAFETY: an index below `used` has been written.
        Some(unsafe { &mut *self.spans.add(n as usize) })
    }

    fn bucket(&mut self, ring: u8, user_data: u64) -> &mut u32 {
        let mixed = (user_data ^ u64::from(ring) << 56).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // SAFETY: the uppermost bits of the product, less than the number of buckets. There is a span, so the tables
        // are mapped.
        unsafe { &mut *self.buckets.add((mixed >> 52) as usize) }
    }

    pub fn next_request(&mut self) -> u32 {
        self.last = self.last.wrapping_add(1);
        self.last
    }

    /// True if there is room for this many spans.
    pub fn has_room(&self, many: u64) -> bool {
        (SPANS - self.live) as u64 >= many
    }

    pub fn last_request(&self) -> u32 {
        self.last
    }

    /// Adds a span to the request that is being noted.
    pub fn add(&mut self, span: Span) -> bool {
        let link = match self.free {
            0 if self.spans.is_null() || self.used as usize == SPANS => return false,
            0 => {
                self.used += 1;
                self.used
            }
            free => {
                self.free = self.at(free).map_or(0, |s| s.chain);
                free
            }
        };
        self.live += 1;
        // SAFETY: within the table.
        unsafe { self.spans.add(link as usize - 1).write(span) };
        let (first, last) = self.new;
        if let Some(last) = self.at(last) {
            last.next = link;
        }
        self.new = (if first == 0 { link } else { first }, link);
        true
    }

    /// The request that is being noted.
    pub fn new_request(&mut self) -> Option<&mut Span> {
        self.at(self.new.0)
    }

    /// Limit of the bytes that it transfers.
    pub fn bytes(&mut self) -> u64 {
        let first = self.new.0;
        Walk(self, first)
            .filter(|s| s.moves == Moves::Result)
            .map(|s| s.len)
            .sum()
    }

    /// Drops the request that was being noted.
    pub fn abandon(&mut self) {
        let (first, _) = core::mem::take(&mut self.new);
        self.free(first);
    }

    /// Ends noting a request: from now on its number can complete. Keeps the old values of watched memory that it may
    /// write. Returns its first span, for the next request of its chain.
    pub fn noted(&mut self) -> u32 {
        let (first, _) = core::mem::take(&mut self.new);
        let mut walk = Walk(self, first);
        let kept = kept::keep(
            &mut walk
                .by_ref()
                .filter(|s| s.kind.writes())
                .map(|s| (s.at, s.len)),
        );
        let Some(&mut Span {
            ring, user_data, ..
        }) = self.at(first)
        else {
            return 0;
        };
        let chain = core::mem::replace(self.bucket(ring, user_data), first);
        if let Some(span) = self.at(first) {
            (span.kept, span.chain) = (kept, chain);
            if span.skips
                && let request = span.request
                && let Some((old, request)) = self.skipped.push(first, request)
            {
                self.expire(old, request);
            }
        }
        first
    }

    fn free(&mut self, mut link: u32) {
        let (mut free, mut live) = (self.free, self.live);
        while let Some(span) = self.at(link) {
            if span.kept != 0 {
                kept::free(core::mem::take(&mut span.kept));
            }
            (span.live, span.chain) = (false, free);
            live -= 1;
            (free, link) = (link, span.next);
        }
        (self.free, self.live) = (free, live);
    }

    /// Takes a request out of its bucket.
    fn unlink(&mut self, link: u32) {
        let Some(&mut Span {
            ring,
            user_data,
            chain,
            ..
        }) = self.at(link)
        else {
            return;
        };
        let mut from = *self.bucket(ring, user_data);
        if from == link {
            *self.bucket(ring, user_data) = chain;
            return;
        }
        while let Some(span) = self.at(from) {
            if span.chain == link {
                span.chain = chain;
                return;
            }
            from = span.chain;
        }
    }

    /// Calls `f` for the requests in flight for which `which` is true.
    fn each(&mut self, which: impl Fn(&Span) -> bool, f: impl Fn(&mut Flight, u32)) {
        for link in 1..=self.used {
            if self.at(link).is_some_and(|s| s.waits() && which(s)) {
                f(self, link);
            }
        }
    }

    fn forget(&mut self, which: impl Fn(&Span) -> bool) {
        self.each(which, |flight, link| {
            flight.unlink(link);
            flight.free(link);
        });
    }

    /// Forgets `many` requests from `first` on, which the kernel has not taken.
    pub fn forget_requests(&mut self, first: u32, many: u32) {
        if many > 0 {
            self.forget(|s| s.request.wrapping_sub(first) < many);
        }
    }

    pub fn forget_ring(&mut self, ring: u8) {
        self.forget(|s| s.ring & !GIVEN == ring);
    }

    /// Forgets the buffers of a group of a ring.
    pub fn forget_group(&mut self, ring: u8, group: u16) {
        self.forget(|s| s.ring == GIVEN | ring && s.user_data >> 16 == u64::from(group));
    }

    /// The requests with this number: the oldest one, and their number.
    fn numbered(&mut self, ring: u8, user_data: u64) -> (u32, u32) {
        let (mut link, mut oldest, mut all) = (*self.bucket(ring, user_data), 0, 0);
        while let Some(span) = self.at(link) {
            if span.ring == ring && span.user_data == user_data {
                (oldest, all) = (link, all + 1);
            }
            link = span.chain;
        }
        (oldest, all)
    }

    /// Handles a completion.
    pub fn complete(&mut self, ring: u8, user_data: u64, result: i32, flags: u32) {
        if self.spans.is_null() {
            return;
        }
        let (oldest, all) = self.numbered(ring, user_data);
        if flags & u::IORING_CQE_F_BUFFER != 0
            && let Some(&mut Span {
                group: Some(group),
                opcode,
                ..
            }) = self.at(oldest)
        {
            self.filled(ring, key(group, (flags >> 16) as u16), opcode, result);
        }
        if flags & u::IORING_CQE_F_MORE != 0 {
            if let Some(span) = self.at(oldest).filter(|_| all == 1) {
                span.result = result;
            }
            return;
        }
        // For a zero-copy send this reports only that its memory is the program's again.
        let result = match self.at(oldest) {
            Some(span) if flags & u::IORING_CQE_F_NOTIF != 0 => span.result,
            _ => result,
        };
        if all == 1 {
            self.ends(oldest, result);
        } else if let Some(span) = self.at(oldest) {
            span.ended += 1;
            if span.ended >= all {
                let here = |s: &Span| s.ring == ring && s.user_data == user_data;
                self.each(here, |flight, link| flight.ends_somehow(link));
            }
        }
    }

    /// A request has taken a buffer that was given to the ring.
    fn filled(&mut self, ring: u8, key: u64, opcode: u8, result: i32) {
        let (buffer, _) = self.numbered(GIVEN | ring, key);
        if let Some(span) = self.at(buffer) {
            span.opcode = opcode;
            self.done(buffer, result);
        }
    }

    /// A request that gives buffers or sends a message has failed, or one has removed buffers.
    fn given(&mut self, span: &Span, result: i32) {
        let ring = GIVEN | span.ring;
        if span.opcode == IORING_OP_MSG_RING as u8 && result < 0 {
            // The other ring gets no message.
            let request = span.request;
            self.forget(|s| s.request == request && s.opcode == u8::MAX);
        }
        if span.opcode == IORING_OP_PROVIDE_BUFFERS as u8 && result < 0 {
            let request = span.request;
            self.forget(|s| s.ring == ring && s.request == request);
        }
        let group = span
            .group
            .filter(|_| span.opcode == IORING_OP_REMOVE_BUFFERS as u8);
        for _ in 0..result.max(0) {
            let Some(oldest) = group.and_then(|group| self.oldest(ring, group)) else {
                break;
            };
            self.unlink(oldest);
            self.free(oldest);
        }
    }

    /// The buffer of a group that the ring has had for the longest time.
    fn oldest(&mut self, ring: u8, group: u16) -> Option<u32> {
        let (now, group) = (self.last, u64::from(group));
        let mut oldest = None;
        for link in 1..=self.used {
            let its = |s: &&mut Span| s.waits() && s.ring == ring && s.user_data >> 16 == group;
            if let Some(span) = self.at(link).filter(its) {
                oldest = oldest.max(Some((now.wrapping_sub(span.request), link)));
            }
        }
        oldest.map(|(_, link)| link)
    }

    /// Ends a request that has completed, along with those of its chain whose completions are skipped.
    fn ends(&mut self, link: u32, result: i32) {
        let Some(&mut span) = self.at(link) else {
            return;
        };
        self.given(&span, result);
        self.done(link, result);
        let mut before = span.before;
        while let Some(earlier) = self.partner(before) {
            if earlier.skips {
                match earlier.whole {
                    true => self.done(before.0, earlier.all),
                    false => self.ends_somehow(before.0),
                }
            }
            before = earlier.before;
        }
        // It has failed, so the requests behind it are cancelled without a completion.
        let mut after = span.after;
        while span.skips
            && let Some(later) = self.partner(after)
        {
            self.done(after.0, ECANCELED as i32);
            after = later.after;
        }
    }

    /// Another request of the chain, if it is in flight.
    fn partner(&mut self, (link, request): (u32, u32)) -> Option<Span> {
        self.at(link)
            .filter(|s| s.waits() && s.request == request)
            .copied()
    }

    /// Links a request with the next one of its chain.
    pub fn follows(&mut self, before: u32, next: u32) {
        let after = self.at(next).map_or(0, |s| s.request);
        let Some(span) = self.at(before) else { return };
        span.after = (next, after);
        let request = span.request;
        if let Some(span) = self.at(next) {
            span.before = (before, request);
        }
    }

    fn done(&mut self, first: u32, result: i32) {
        let mut left = result.max(0) as u64;
        let mut link = first;
        while let Some(span) = self.at(link) {
            span.ends(result, &mut left);
            link = span.next;
        }
        self.completed(first);
    }

    /// Ends a request that may or may not have completed: its writes are found by comparing.
    fn ends_somehow(&mut self, first: u32) {
        let mut link = first;
        while let Some(span) = self.at(link) {
            (span.done, span.known, span.touched) = (true, false, Some(span.len));
            link = span.next;
        }
        self.completed(first);
    }

    fn completed(&mut self, link: u32) {
        self.unlink(link);
        if let Some(span) = self.at(link) {
            span.chain = 0;
        }
        let (first, last) = self.done;
        if let Some(last) = self.at(last) {
            last.chain = link;
        }
        self.done = (if first == 0 { link } else { first }, link);
    }

    /// Ends a request whose completion is skipped when it is old.
    fn expire(&mut self, link: u32, request: u32) {
        if self.partner((link, request)).is_some() {
            self.ends_somehow(link);
        }
    }

    /// Ends all requests of a ring.
    pub fn ring_done(&mut self, ring: u8) {
        self.each(|s| s.ring == ring, |flight, link| flight.ends_somehow(link));
    }

    /// Takes out a span of a completed request. Also returns the request's old values, and whether the span is its last
    /// one.
    pub fn take_done(&mut self) -> Option<(Span, u64, bool)> {
        let first = self.done.0;
        let span = *self.at(first)?;
        let next = span.next;
        self.done.0 = match next {
            0 => span.chain,
            next => next,
        };
        if let Some(next) = self.at(next) {
            (next.kept, next.chain) = (span.kept, span.chain);
        }
        if self.done.1 == first {
            self.done.1 = next;
        }
        if let Some(taken) = self.at(first) {
            (taken.kept, taken.next) = (0, 0);
        }
        self.free(first);
        Some((span, span.kept, next == 0))
    }

    /// True if a request in flight may touch `[start, end)`.
    pub fn meets(&mut self, start: u64, end: u64) -> bool {
        let meets = |s: &Span| {
            s.live && !s.copied && !s.done && s.at < end && start < s.at.saturating_add(s.len)
        };
        (1..=self.used).any(|link| self.at(link).is_some_and(|s| meets(s)))
    }
}

/// The spans of a request.
struct Walk<'a>(&'a mut Flight, u32);

impl Iterator for Walk<'_> {
    type Item = Span;

    fn next(&mut self) -> Option<Span> {
        let span = *self.0.at(self.1)?;
        self.1 = span.next;
        Some(span)
    }
}
