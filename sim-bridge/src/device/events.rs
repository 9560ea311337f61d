// SPDX-License-Identifier: GPL-2.0-or-later
//! The ring's calls, and the writing of events.

use super::ring::{MOST, Ring, SLOT};
use crate::errno::{EAGAIN, EBUSY, EINTR, EINVAL, ENOMEM, ENXIO};
use crate::memory::{Backing, PAGE};
use crate::processes::calls as processes;
use crate::state::{State, Uc};
use crate::threads::{Later, Wait};
use crate::user_memory::{read_structure, write_bytes};
use std::sync::atomic::Ordering::SeqCst;
use ulpf_lib::device::abi::{self, Structure};
use unicorn_engine::RegisterX86 as R;

pub fn make(uc: &mut Uc, s: &mut State, id: u32, at: u64) -> Result<(), i64> {
    let asked: abi::Ring = read_structure(uc, s, at)?;
    let abi::Ring {
        records,
        watermark,
        latency_us,
        ..
    } = asked;
    if asked.flags != 0
        || asked.reserved != 0
        || !(64..=MOST).contains(&records)
        || !records.is_power_of_two()
        || !(1..=records / 2).contains(&watermark)
        || latency_us > 10_000_000
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
        latency_ns: u64::from(latency_us) * 1000,
    };
    ring.begin();
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

/// Whether read() has events, or the end, to return now.
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
        return wait_for_events(s, nonblocking, deadline);
    }
    let (head, mut next) = (ring.head().load(SeqCst), ring.next().load(SeqCst));
    let mut events = vec![];
    let oldest = head.saturating_sub(ring.records);
    if next < oldest {
        events.push(abi::Event {
            addr: oldest - next,
            r#type: abi::EVENT_LOST,
            ..abi::Event::default()
        });
        next = oldest;
    }
    while next < head && (events.len() as u64) < len / SLOT {
        events.push(ring.slot(next));
        next += 1;
    }
    let mut bytes = vec![0; events.len() * SLOT as usize];
    for (event, place) in events.iter().zip(bytes.chunks_exact_mut(SLOT as usize)) {
        event.write_to(place);
    }
    write_bytes(uc, s, to, &bytes)?;
    ring.next().store(next, SeqCst);
    Ok(bytes.len() as i64)
}

/// The device waits: what blocks a reader of its ring.
pub fn wait_for_events(
    s: &mut State,
    nonblocking: bool,
    deadline: Option<u64>,
) -> Result<i64, i64> {
    if nonblocking {
        return Err(EAGAIN);
    }
    if processes::interrupted(s) {
        return Err(EINTR);
    }
    let look = deadline.unwrap_or(u64::MAX).min(s.now() + 1_000_000);
    s.later(Later::Again(Wait::File {
        fd: -1,
        events: 0,
        deadline: Some(look),
    }))
}

impl State {
    /// Tells the ring, if there is one.
    pub(crate) fn event(&mut self, uc: &Uc, kind: u16, addr: u64, info: u16) {
        let Some(id) = self.space.guarded_by(addr) else {
            return;
        };
        let c = &mut self.device.of(id).counts;
        match kind {
            abi::EVENT_KERNEL_READ => c.kernel_reads += 1,
            abi::EVENT_KERNEL_WRITE => c.kernel_writes += 1,
            abi::EVENT_GUARD => c.guards += 1,
            abi::EVENT_UNHANDLED => c.unhandled += 1,
            _ => c.undelivered += 1,
        }
        let Some(ring) = self.device.of(id).ring else {
            return;
        };
        let get = |r| uc.reg_read(r).unwrap_or(0);
        let call = self.calling.map_or(-1, |n| n as i32);
        // Behind the instruction, if it is a system call's.
        let ip = get(R::RIP) + if self.calling.is_some() { 2 } else { 0 };
        ring.put(&abi::Event {
            time: self.now(),
            addr,
            ip,
            sp: get(R::RSP),
            pid: processes::id(self) as u32,
            tid: self.thread_id(),
            r#type: kind,
            info,
            syscall: call,
            ..abi::Event::default()
        });
    }
}
