//! Requests become those that the kernel can do beside guards, are handed to it, and become the program's again.

use ulpf_lib::sys::failure::{EINVAL, ENOMEM};

use super::operands::{Message, Rewriter, Sqe};
use crate::runtime::thread::Current;
use crate::syscalls::call::{Args, raw};
use crate::syscalls::scratch::Scratch;
use crate::uring::flight::Span;
use crate::uring::rings::with;

/// A request that has been changed.
#[derive(Clone, Copy)]
struct Changed {
    at: u64,
    was: Sqe,
    message: Option<Message>,
}

/// Hands requests to the kernel; and whether there was one that is not served.
pub fn submit(t: Current, nr: u64, a: &Args, n: usize) -> (i64, bool) {
    let mut s = Scratch::new(t);
    with(|state| {
        state.mark();
        let Some(ring) = state.rings.get(n).copied() else {
            return (EINVAL, false);
        };
        let head = ring.head();
        let many = ring
            .tail()
            .wrapping_sub(head)
            .min(a[1] as u32)
            .min(ring.entries);
        let Some(changed) = s.room(many as u64 * size_of::<Changed>() as u64) else {
            return (ENOMEM, false);
        };
        let changed = changed as *mut Changed;
        let (mut count, mut refused) = (0, false);
        let first = state.flight.next_request();
        for i in 0..many {
            let request = match i {
                0 => first,
                _ => state.flight.next_request(),
            };
            let Some(at) = ring.sqe(head.wrapping_add(i)) else {
                continue;
            };
            // SAFETY: a request in our view of the ring.
            let was = unsafe { (at as *const Sqe).read_volatile() };
            let mut sqe = was;
            let noted = state.flight.noted();
            let mut rewriter = Rewriter {
                flight: &mut state.flight,
                ring: &ring,
                number: n as u8,
                request,
                first: true,
                s: &mut s,
                sqe: &mut sqe,
                message: None,
                many: false,
                unnoted: false,
            };
            let served = rewriter.rewrite().is_ok();
            let (message, more, unnoted) = (rewriter.message, rewriter.many, rewriter.unnoted);
            if !served {
                sqe.opcode = u8::MAX;
                refused = true;
                state.flight.truncate(noted);
                let number = was.user_data;
                if !state
                    .flight
                    .add(Span::without_memory(n as u8, request, number))
                {
                    state.lose(n);
                }
            }
            if unnoted {
                state.lose(n);
            }
            if more && let Some(ring) = state.rings.get_mut(n) {
                ring.many = true;
            }
            state.flight.keep_old(noted);
            // SAFETY: room for all; a request in our view.
            unsafe {
                changed.add(count).write(Changed { at, was, message });
                (at as *mut Sqe).write_volatile(sqe);
            }
            count += 1;
        }
        let result = raw(nr, &[a[0], many as u64, 0, 0, 0, 0]);
        // SAFETY: so many were written.
        let changed = unsafe { core::slice::from_raw_parts(changed, count) };
        for c in changed.iter().rev() {
            // SAFETY: a request in our view.
            unsafe { (c.at as *mut Sqe).write_volatile(c.was) };
            if let Some(m) = c.message {
                m.was.put_pointers(m.at);
            }
        }
        let taken = ring.head().wrapping_sub(head);
        state.flight.forget(|span| {
            span.ring == n as u8
                && span.request.wrapping_sub(first) < many
                && span.request.wrapping_sub(first) >= taken
        });
        if let Some(ring) = state.rings.get_mut(n) {
            ring.submitted = ring.submitted.wrapping_add(taken);
        }
        (result, refused)
    })
}
