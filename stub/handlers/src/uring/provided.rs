//! Buffers that the program gives to a ring, of which each request takes one when it has something to write to it: by a
//! request (IORING_OP_PROVIDE_BUFFERS) or in a ring of descriptors (IORING_REGISTER_PBUF_RING). Each is noted as a
//! request of its own would be, `GIVEN` beside its ring, by its group and number: it is in flight until a completion names it.
//!
//! A ring of descriptors is in the program's memory, and the program fills it without a call. The kernel gets one of
//! ours, which is filled from it, with the addresses of the alias, whenever a thread enters the kernel for the ring.

use core::sync::atomic::{AtomicU16, Ordering::*};

use ulpf_lib::AccessKind::Write;

use super::flight::{Flight, Moves, Span};
use super::span::{GIVEN, key};
use crate::runtime::memory;
use crate::syscalls::vectors::{IoVec, cut};

/// How many rings of descriptors there may be.
const MOST: usize = 256;
/// Where the program's tail is, in the first descriptor.
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

/// Notes one: `false` if there is no room.
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
    /// Zero: none.
    pub entries: u32,
    /// How far they have been handed on.
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

    /// The ones of a ring, or one of them.
    pub fn remove(&mut self, ring: u8, group: Option<u16>) {
        let which = |d: &&mut Descriptors| {
            d.entries != 0 && d.ring == ring && group.is_none_or(|group| d.group == group)
        };
        self.0.iter_mut().filter(which).for_each(|d| {
            d.give_up();
            d.entries = 0;
        });
    }

    /// Hands on what the program has added to the descriptors of a ring.
    pub fn hand_on(&mut self, flight: &mut Flight, ring: u8) {
        let its = self
            .0
            .iter_mut()
            .filter(|d| d.entries != 0 && d.ring == ring);
        its.for_each(|d| d.hand_on(flight));
    }
}

impl Descriptors {
    /// A ring of ours beside that of the program.
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
            // Of one that is not in one piece the first is offered.
            (d.addr, d.len) = (part.base, part.len as u32);
            // SAFETY: within our ring; the tail, which stands in the first one, is written below.
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
