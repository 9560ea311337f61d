// SPDX-License-Identifier: GPL-2.0-or-later
//! The event ring. Its memory is shared with forked children, so that a monitor can be one; behind the
//! slots lies what only the machine sees: the position of those who read().
//!
//! ```text
//!   0       header, one page     4096      slots, 64 bytes each     …       position, end
//! ```

use super::{ENXIO, structure, word};
use crate::machine::{State, Uc};
use crate::memory::{Backing, PAGE};
use crate::os::{EBUSY, EINVAL, ENOMEM, write_bytes};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use unicorn_engine::RegisterX86 as R;

pub const MOST: u32 = 1 << 16;
const SLOT: u64 = 64;
const HEAD: usize = 16;

pub const LOST: u16 = 1;
pub const KERNEL_READ: u16 = 2;
pub const KERNEL_WRITE: u16 = 3;
pub const GUARD: u16 = 4;
pub const UNHANDLED: u16 = 5;
pub const UNDELIVERED: u16 = 6;

#[derive(Clone, Copy)]
pub struct Ring {
    at: *mut u8,
    records: u64,
    watermark: u64,
    latency_ns: u64,
    /// The process whose ring it is (pidfd).
    owner: i32,
}

impl Ring {
    fn length(&self) -> u64 {
        PAGE + self.records * SLOT
    }

    fn cell(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: the mapping is never undone, and as long as `make` has made it; offsets are aligned.
        unsafe { &*self.at.add(offset).cast::<AtomicU64>() }
    }

    fn head(&self) -> &AtomicU64 {
        self.cell(HEAD)
    }

    /// The number that read() gives next.
    fn next(&self) -> &AtomicU64 {
        self.cell(self.length() as usize)
    }

    fn end(&self) -> &AtomicU64 {
        self.cell(self.length() as usize + 8)
    }

    /// The owner has another program.
    pub fn close(&self) {
        self.end().store(1, SeqCst);
    }

    /// Will there be no more events?
    fn is_over(&self) -> bool {
        self.end().load(SeqCst) != 0 || crate::threads::ready(self.owner, libc::POLLIN, 0)
    }

    fn slot(&self, number: u64) -> [u64; 8] {
        let at = (PAGE + number % self.records * SLOT) as usize;
        std::array::from_fn(|n| self.cell(at + 8 * n).load(SeqCst))
    }

    fn put(&self, event: [u64; 8]) {
        let number = self.head().fetch_add(1, SeqCst);
        let at = (PAGE + number % self.records * SLOT) as usize;
        self.cell(at).store(0, SeqCst);
        for (n, word) in event.into_iter().enumerate().skip(1) {
            self.cell(at + 8 * n).store(word, SeqCst);
        }
        self.cell(at).store(number + 1, SeqCst);
    }

    /// Events that wait, and when the first of them came.
    fn waiting(&self) -> (u64, u64) {
        let (head, next) = (self.head().load(SeqCst), self.next().load(SeqCst));
        let first = next.max(head.saturating_sub(self.records));
        (
            head - next,
            if head > first { self.slot(first)[1] } else { 0 },
        )
    }
}

pub fn make(uc: &mut Uc, s: &mut State, id: u32, at: u64) -> Result<(), i64> {
    let r = structure(uc, s, at, 24)?;
    let (records, watermark, latency) = (word(&r, 8), word(&r, 12), word(&r, 16));
    if word(&r, 4) != 0
        || word(&r, 20) != 0
        || !(64..=MOST).contains(&records)
        || !records.is_power_of_two()
        || !(1..=records / 2).contains(&watermark)
        || latency > 10_000_000
    {
        return Err(EINVAL);
    }
    if s.device.of(id).ring.is_some() {
        return Err(EBUSY);
    }
    let length = PAGE + u64::from(records) * SLOT;
    // SAFETY: new shared memory, never unmapped; a page more than the program sees.
    let host = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            (length + PAGE) as usize,
            3,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if host == libc::MAP_FAILED {
        return Err(ENOMEM);
    }
    // SAFETY: no memory is involved. The descriptor stays as long as the ring.
    let owner = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) } as i32;
    if owner < 0 {
        return Err(ENOMEM);
    }
    let ring = Ring {
        owner,
        at: host.cast(),
        records: records.into(),
        watermark: watermark.into(),
        latency_ns: u64::from(latency) * 1000,
    };
    ring.cell(0).store(1 | u64::from(records) << 32, SeqCst);
    ring.cell(8).store(PAGE | length << 32, SeqCst);
    s.device.of(id).ring = Some(ring);
    Ok(())
}

pub fn mmap(
    uc: &mut Uc,
    s: &mut State,
    id: u32,
    (at, len): (u64, u64),
    protection: u64,
    offset: u64,
) -> Result<i64, i64> {
    let ring = s.device.of(id).ring.ok_or(ENXIO)?;
    if protection & 2 != 0 || offset != 0 || len > crate::memory::up(ring.length()).unwrap_or(0) {
        return Err(EINVAL);
    }
    // SAFETY: the ring's memory is never unmapped, and has this length.
    unsafe {
        s.space
            .map_host(uc, at, len, protection, ring.at, Backing::Ring(id))
    }
    .map_err(|_| ENOMEM)?;
    Ok(at as i64)
}

/// What there is for read() now: nothing, events, or the end.
fn is_ready(now: u64, nonblocking: bool, ring: &Ring) -> bool {
    let (waiting, first) = ring.waiting();
    waiting >= ring.watermark
        || ring.is_over()
        || (waiting > 0 && nonblocking)
        || (waiting > 0 && ring.latency_ns > 0 && now >= first + ring.latency_ns)
}

pub fn polled(s: &mut State, id: u32) -> i16 {
    let now = s.now();
    let device = s.device.of(id);
    match &device.ring {
        Some(ring) if ring.is_over() => libc::POLLIN | libc::POLLHUP,
        Some(ring) if is_ready(now, device.nonblocking, ring) => libc::POLLIN,
        Some(_) => 0,
        None => libc::POLLERR,
    }
}

pub fn read(uc: &mut Uc, s: &mut State, id: u32, to: u64, len: u64) -> Result<i64, i64> {
    let ring = s.device.of(id).ring.ok_or(ENXIO)?;
    if len < SLOT {
        return Err(EINVAL);
    }
    let nonblocking = s.device.of(id).nonblocking;
    if !is_ready(s.now(), nonblocking, &ring) {
        let (waiting, first) = ring.waiting();
        let deadline = (waiting > 0 && ring.latency_ns > 0).then_some(first + ring.latency_ns);
        return crate::os::wait_for_events(s, nonblocking, deadline);
    }
    let (head, mut next) = (ring.head().load(SeqCst), ring.next().load(SeqCst));
    let mut events = vec![];
    let oldest = head.saturating_sub(ring.records);
    if next < oldest {
        events.push([0, 0, oldest - next, 0, 0, 0, LOST.into(), 0]);
        next = oldest;
    }
    while next < head && (events.len() as u64) < len / SLOT {
        events.push(ring.slot(next));
        next += 1;
    }
    let bytes: Vec<u8> = events
        .iter()
        .flatten()
        .flat_map(|w| w.to_le_bytes())
        .collect();
    write_bytes(uc, s, to, &bytes)?;
    ring.next().store(next, SeqCst);
    Ok(bytes.len() as i64)
}

impl State {
    /// Tells the ring, if there is one.
    pub(crate) fn event(&mut self, uc: &Uc, kind: u16, addr: u64, info: u16) {
        let Some(id) = self.space.guarded_by(addr) else {
            return;
        };
        let c = &mut self.device.of(id).counts;
        match kind {
            KERNEL_READ => c.kernel_reads += 1,
            KERNEL_WRITE => c.kernel_writes += 1,
            GUARD => c.guards += 1,
            UNHANDLED => c.unhandled += 1,
            _ => c.undelivered += 1,
        }
        let Some(ring) = self.device.of(id).ring else {
            return;
        };
        let get = |r| uc.reg_read(r).unwrap_or(0);
        let call = self.calling.map_or(-1, |n| n as i32);
        // Behind the instruction, if it is a system call's.
        let ip = get(R::RIP) + if self.calling.is_some() { 2 } else { 0 };
        let (pid, tid) = (
            crate::processes::id(self) as u64,
            u64::from(self.thread_id()),
        );
        ring.put([
            0,
            self.now(),
            addr,
            ip,
            get(R::RSP),
            pid | tid << 32,
            u64::from(kind) | u64::from(info) << 16 | u64::from(call as u32) << 32,
            0,
        ]);
    }
}
