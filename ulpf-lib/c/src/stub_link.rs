//! A stub in the same process (`ulpf gdb`, `ulpf run`, …): its presence, and the facts that only it knows.
//!
//! The stub watches the program as it watches any other, including this library. Our guards are protections that the
//! program has set: the stub guards the memory beneath them, and passes their faults to us. The stub does not see an
//! access at the program's address if we perform it through an alias, so we report it (`stub_report.rs`). An access may
//! have a part that we leave in place. If the stub guards that part, the instruction is single-stepped instead ([`Map`]).
//! See `ulpf_lib::library_abi`.

use core::ops::Range;
use core::sync::atomic::Ordering::*;

use linux_raw_sys::general as k;
use ulpf_engine::exec::{AliasMap, Open};
use ulpf_lib::guard::maps::{Snapshot, Vma, VmaKind};
use ulpf_lib::library_abi::{AccessReport, CALL, CONCERNS, COPY, HELLO, RUNS, Run, SHARED, TELL};
use ulpf_lib::{AccessKind, TargetAddr, place, sys};

use crate::shared::S;

/// The stub has detected the library. (It does so as soon as our SIGSEGV handler is installed.)
#[inline]
pub fn present() -> bool {
    S.table.stub.load(SeqCst) != 0
}

fn call(op: u64, a: u64, b: u64, c: u64) -> Option<u64> {
    // SAFETY: an operation that Linux does not know, or the stub's, which checks its arguments.
    unsafe { sys!(k::__NR_prctl, CALL, op, a, b, c) }.ok()
}

/// Reports accesses to the stub. Returns `true` if the thread is to stop for them.
pub fn report(access: &AccessReport) -> bool {
    call(TELL, core::ptr::from_ref(access) as u64, 0, 0) == Some(1)
}

/// Whether a stub is present, even if it has not detected the library yet.
pub fn ask() -> bool {
    call(HELLO, 0, 0, 0).is_some()
}

/// The stub allocates in our place as well, so our memory begins in the middle of the largest free range.
pub fn keep_apart(snapshot: &Snapshot) {
    let Range { start, end } = place::memory();
    let (mut best, mut free) = ((0, start), start);
    let taken = snapshot.vmas.iter().map(|v| (v.start, v.end));
    for (start, stop) in taken.chain([(end, end)]) {
        let room = start.min(end).saturating_sub(free);
        if room > best.0 {
            best = (room, free);
        }
        free = free.max(stop);
    }
    place::begin_at((best.1 + best.0 / 2) & !((1 << 30) - 1));
}

/// Copies the program's memory as the program sees it, without a hit; returns the number of bytes.
///
/// # Safety
/// Memory at `to`, if there is any, may be changed.
pub unsafe fn copy(to: u64, from: u64, len: u64) -> Option<u64> {
    call(COPY, to, from, len)
}

/// Whether the stub has to see such an access to these bytes.
fn concerns(addr: u64, len: u64, kind: AccessKind) -> bool {
    call(CONCERNS, addr, len, kind as u64) == Some(1)
}

/// The page map for performing. An access in place that the stub guards is not made from a thunk, because the stub would
/// see it at a PC outside of the program.
pub struct Map;

impl AliasMap for Map {
    fn open(&self, addr: TargetAddr, len: u64, kind: AccessKind) -> Open {
        match AliasMap::open(&S.table.pages, addr, len, kind) {
            Open::Plain if present() && concerns(addr.0, len, kind) => Open::Split,
            other => other,
        }
    }
}

/// Ranges that the stub has moved, with the program's protection.
fn runs() -> Vec<Run> {
    let mut all: Vec<Run> = Vec::new();
    let mut part = [Run::default(); 64];
    loop {
        let from = all.last().map_or(0, |r| r.end);
        let n = call(RUNS, from, part.as_mut_ptr() as u64, part.len() as u64).unwrap_or(0) as usize;
        all.extend(part.iter().take(n));
        if n < part.len() {
            return all;
        }
    }
}

/// Corrects a snapshot of /proc/self/maps, which shows the program's mappings as the stub has changed them.
pub fn put_right(snapshot: &mut Snapshot) {
    if !present() {
        return;
    }
    let mut before = runs();
    loop {
        if let Ok(now) = Snapshot::read() {
            *snapshot = now;
        }
        // The stub may have changed something between the two reads.
        let after = runs();
        if before == after {
            break;
        }
        before = after;
    }
    let mut vmas: Vec<Vma> = Vec::with_capacity(snapshot.vmas.len() + before.len());
    for vma in &snapshot.vmas {
        let mut at = vma.start;
        let from = before.partition_point(|r| r.end <= vma.start);
        for run in before.iter().skip(from).take_while(|r| r.start < vma.end) {
            let (start, end) = (run.start.max(at), run.end.min(vma.end));
            if at < start {
                vmas.push(Vma {
                    start: at,
                    end: start,
                    ..*vma
                });
            }
            let mut part = Vma {
                start,
                end,
                prot: run.flags as u8,
                ..*vma
            };
            if run.flags & SHARED == 0 {
                (part.shared, part.kind) = (false, VmaKind::Anonymous);
                (part.dev, part.inode) = (0, 0);
            }
            vmas.push(part);
            at = end;
        }
        if at < vma.end {
            vmas.push(Vma { start: at, ..*vma });
        }
    }
    snapshot.vmas = vmas;
}
