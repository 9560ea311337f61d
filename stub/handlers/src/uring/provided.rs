//! Buffers that the program gives to a ring. A request takes one when it has data to write to it. The program gives
//! them by a request (IORING_OP_PROVIDE_BUFFERS) or in a ring of descriptors (IORING_REGISTER_PBUF_RING). Each buffer
//! is noted like a request, with `GIVEN` in its ring's number, by its group and number. It is in flight until a
//! completion names it.
//!
//! A ring of descriptors is in the program's memory, and the program fills it without a call. The kernel gets one of
//! ours. Whenever a thread enters the kernel for the ring, ours is filled from the program's, with the addresses of the
//! alias.

use core::sync::atomic::{AtomicU16, Ordering::*};

use ulpf_lib::AccessKind::Write;

use super::flight::{Flight, Moves, Span};
use super::span::{GIVEN, key};
use crate::runtime::memory;
use crate::syscalls::vectors::{IoVec, cut};

/// Limit of rings of descriptors.
const MOST: usize = 256;
/// Offset of the program's tail, in the first descriptor.
const TAIL: u64 = 14;

/// struct io_uring_buf
#[derive(Clone, Copy)]
#[repr(C)]
struct Descriptor {
    addr: u64,
    len: u32,
    number: u16,
    _tail: u16,
}

/// Notes a buffer. Returns `false` if there is no room.
pub fn note(flight: &mut Flight, ring: u8, request: u32, key: u64, at: u64, len: u64) -> bool {
    let added = flight.add(Span {
        at,
        len,
        moves: Moves::Result,
        copied: false,
        kind: Write,
        ..Span::without_memory(GIVEN | ring, request, key)
    });
    if added {
        flight.noted();
    }
    added
}

#[derive(Clone, Copy)]
pub struct Descriptors {
    pub ring: u8,
    pub group: u16,
    /// Entries of the ring, or 0 if this slot is free.
    pub entries: u32,
    /// Position up to which they have been handed on.
    tail: u16,
    theirs: u64,
    ours: u64,
}

pub struct Given([Descriptors; MOST]);

impl Given {
    pub const NONE: Given = Given(
        [Descriptors {
            ring: 0,
            group: 0,
            entries: 0,
            tail: 0,
            theirs: 0,
            ours: 0,
        }; MOST],
    );

    pub fn add(&mut self, d: Descriptors) -> bool {
        let free = self.0.iter_mut().find(|d| d.entries == 0);
        free.map(|free| *free = d).is_some()
    }

    /// Removes the descriptors of a ring, or those of one group.
    pub fn remove(&mut self, ring: u8, group: Option<u16>) {
        let which = |d: &&mut Descriptors| {
            d.entries != 0 && d.ring == ring && group.is_none_or(|group| d.group == group)
        };
        self.0.iter_mut().filter(which).for_each(|d| {
            d.give_up();
            d.entries = 0;
        });
    }

    /// Hands on the descriptors that the program has added to a ring.
    pub fn hand_on(&mut self, flight: &mut Flight, ring: u8) {
        let its = self
            .0
            .iter_mut()
            .filter(|d| d.entries != 0 && d.ring == ring);
        its.for_each(|d| d.hand_on(flight));
    }
}

impl Descriptors {
    /// Creates a ring of ours besides that of the program.
    pub fn new(ring: u8, group: u16, entries: u32, theirs: u64) -> Option<Descriptors> {
        let d = Descriptors {
            ring,
            group,
            entries,
            tail: 0,
            theirs,
            ours: ulpf_lib::arena::map_anonymous(Descriptors::size(entries)) as u64,
        };
        (d.ours != 0).then_some(d)
    }

    fn size(entries: u32) -> usize {
        (entries as usize * size_of::<Descriptor>()).next_multiple_of(4096)
    }

    pub fn ours(&self) -> u64 {
        self.ours
    }

    pub fn give_up(&self) {
        ulpf_lib::arena::unmap_anonymous(self.ours as *mut u8, Descriptors::size(self.entries));
    }

    fn hand_on(&mut self, flight: &mut Flight) {
        let Some(tail) = memory::get::<u16>(self.theirs + TAIL) else {
            return;
        };
        let size = size_of::<Descriptor>() as u64;
        while self.tail != tail {
            let offset = (u32::from(self.tail) & (self.entries - 1)) as u64 * size;
            let Some(mut d) = memory::get::<Descriptor>(self.theirs + offset) else {
                break;
            };
            let request = flight.next_request();
            let whole = IoVec {
                base: d.addr,
                len: d.len.into(),
            };
            let mut first = None;
            cut(whole, Write, &mut |part| first = first.or(Some(part)));
            let part = first.unwrap_or(whole);
            let number = key(self.group, d.number);
            if !note(flight, self.ring, request, number, d.addr, part.len) {
                break;
            }
            // If a buffer is not in one piece, its first piece is offered.
            (d.addr, d.len) = (part.base, part.len as u32);
            // SAFETY: within our ring; the tail, in the first descriptor, is written below.
            unsafe {
                let to = (self.ours + offset) as *mut u64;
                to.write_volatile(d.addr);
                to.add(1).cast::<u32>().write_volatile(d.len);
                to.cast::<u16>().add(6).write_volatile(d.number);
            }
            self.tail = self.tail.wrapping_add(1);
        }
        // SAFETY: within our ring.
        unsafe { &*((self.ours + TAIL) as *const AtomicU16) }.store(self.tail, Release);
    }
}
