//! Rewrites requests for the kernel, hands them over, and restores the program's requests.

use linux_raw_sys::io_uring::io_uring_op::*;
use ulpf_lib::sys::failure::{EAGAIN, EINVAL, ENOMEM};

use super::operands::{Message, Rewriter, Sqe};
use super::wait::REGISTERED;
use crate::runtime::thread::Current;
use crate::syscalls::call::{Args, raw};
use crate::syscalls::scratch::Scratch;
use crate::uring::flight::Span;
use crate::uring::provided;
use crate::uring::rings::{Ring, State, with};

const IO_LINK: u8 = 1 << 2;
const IO_HARDLINK: u8 = 1 << 3;
const CQE_SKIP: u8 = 1 << 6;

/// A request that has been rewritten.
#[derive(Clone, Copy)]
struct Changed {
    at: u64,
    was: Sqe,
    message: Option<Message>,
}

/// The requests that are being handed over.
struct Batch<'a> {
    state: &'a mut State,
    s: &'a mut Scratch,
    ring: Ring,
    number: u8,
    changed: *mut Changed,
    count: usize,
    /// There was a request that is not served.
    refused: bool,
    /// The span of the previous request, if it is linked with the next one.
    before: Option<u32>,
    /// The number of rewritten requests before the present chain.
    chain: usize,
}

/// Hands requests to the kernel. Also returns whether there was one that is not served.
pub fn submit(t: Current, nr: u64, a: &Args, n: usize) -> (i64, bool) {
    let mut s = Scratch::new(t);
    with(|state| {
        state.exchange();
        let Some(ring) = state.rings.get(n).copied() else {
            return (EINVAL, false);
        };
        let head = ring.head();
        let there = ring.tail().wrapping_sub(head);
        let most = there.min(a[1] as u32).min(ring.entries);
        let Some(changed) = s.allocate(most as u64 * size_of::<Changed>() as u64) else {
            return (ENOMEM, false);
        };
        let mut batch = Batch {
            state,
            s: &mut s,
            ring,
            number: n as u8,
            changed: changed as *mut Changed,
            count: 0,
            refused: false,
            before: None,
            chain: 0,
        };
        let first = batch.state.flight.last_request().wrapping_add(1);
        let many = batch.fill(head, most);
        let result = match many {
            Some(many) => raw(nr, &[a[0], many as u64, 0, a[3] & REGISTERED, 0, 0]),
            None => EAGAIN,
        };
        batch.put_back(0);
        let refused = batch.refused;
        let taken = ring.head().wrapping_sub(head);
        let last = state.flight.last_request();
        let not_taken = last.wrapping_sub(first).wrapping_add(1).wrapping_sub(taken);
        state
            .flight
            .forget_requests(first.wrapping_add(taken), not_taken);
        if let Some(ring) = state.rings.get_mut(n) {
            ring.submitted = ring.submitted.wrapping_add(taken);
        }
        (result, refused)
    })
}

impl Batch<'_> {
    /// Rewrites `many` requests, or as many as there is room for; `None` if there is no room for any. A chain stays
    /// whole: the kernel gets the requests before it, and the program hands over the rest later.
    fn fill(&mut self, head: u32, many: u32) -> Option<u32> {
        let mut start = 0;
        for i in 0..many {
            if self.before.is_none() {
                (start, self.chain) = (i, self.count);
            }
            let request = self.state.flight.next_request();
            let Some(at) = self.ring.sqe(head.wrapping_add(i)) else {
                continue;
            };
            if !self.change(at, request) {
                self.put_back(self.chain);
                return (start > 0).then_some(start);
            }
        }
        Some(many)
    }

    /// Rewrites one request and notes it; returns `false` if there is no room.
    fn change(&mut self, at: u64, request: u32) -> bool {
        // SAFETY: a request in our view of the ring.
        let was = unsafe { (at as *const Sqe).read_volatile() };
        let mut sqe = was;
        let flight = &mut self.state.flight;
        let mut rewriter = Rewriter {
            flight,
            ring: &self.ring,
            number: self.number,
            request,
            first: true,
            s: self.s,
            sqe: &mut sqe,
            message: None,
            many: false,
            full: false,
            group: None,
            gives: 0,
            posts: None,
        };
        let served = rewriter.rewrite().is_ok();
        let (message, many, full) = (rewriter.message, rewriter.many, rewriter.full);
        let (group, gives, posts) = (rewriter.group, rewriter.gives, rewriter.posts);
        // SAFETY: there is room for all.
        unsafe {
            let changed = Changed { at, was, message };
            self.changed.add(self.count).write(changed);
        }
        self.count += 1;
        if !served {
            flight.abandon();
            sqe.opcode = u8::MAX;
            self.refused |= !full;
            let note = Span::without_memory(self.number, request, was.user_data);
            if full || !flight.add(note) {
                return false;
            }
        }
        if let Some(span) = flight.new_request() {
            span.group = group;
        }
        self.note(&was, served, many);
        if let Some((fd, number)) = posts {
            self.state.posts(fd, request, number);
        }
        for n in 0..gives {
            // There is room for all.
            let (key, at, len) = was.given(n);
            provided::note(&mut self.state.flight, self.number, request, key, at, len);
        }
        // SAFETY: a request in our view.
        unsafe { (at as *mut Sqe).write_volatile(sqe) };
        true
    }

    fn note(&mut self, was: &Sqe, served: bool, many: bool) {
        let flight = &mut self.state.flight;
        let skips = served && was.flags & CQE_SKIP != 0;
        if skips {
            let all = flight.bytes().min(i32::MAX as u64) as i32;
            if let Some(span) = flight.new_request() {
                (span.skips, span.all) = (true, all);
                span.whole = was.flags & IO_LINK != 0 && moves_all(was.opcode);
            }
        }
        let place = flight.noted();
        if let Some(before) = self.before {
            flight.follows(before, place);
        }
        let links = was.flags & (IO_LINK | IO_HARDLINK) != 0;
        self.before = links.then_some(place);
        if (many || skips)
            && let Some(ring) = self.state.rings.get_mut(self.number as usize)
        {
            ring.many = true;
        }
    }

    /// Restores the program's requests from this one on.
    fn put_back(&mut self, from: usize) {
        while self.count > from {
            self.count -= 1;
            // SAFETY: written before; a request in our view.
            unsafe {
                let c = *self.changed.add(self.count);
                (c.at as *mut Sqe).write_volatile(c.was);
                if let Some(m) = c.message {
                    m.was.put_pointers(m.at);
                }
            }
        }
    }
}

/// True if a partial transfer breaks a chain.
fn moves_all(opcode: u8) -> bool {
    const ALL: &[linux_raw_sys::io_uring::io_uring_op] = &[
        IORING_OP_READ,
        IORING_OP_WRITE,
        IORING_OP_READV,
        IORING_OP_WRITEV,
        IORING_OP_READ_FIXED,
        IORING_OP_WRITE_FIXED,
    ];
    ALL.iter().any(|op| *op as u8 == opcode)
}
