//! A stub in the same process (`ulpf gdb`, `ulpf run`, …): is there one, and what only the stub knows.
//!
//! The stub watches the program as it watches any other, this library with it. Our guards are protections that
//! the program has set: the stub guards what lies beneath them, and faults on them come to us. But what we perform
//! through an alias, the stub does not see at the program's address: so it is told (`stub_report.rs`). Where an
//! access has a part that we leave in its place, and the stub guards that, the instruction is stepped instead
//! ([`Map`]). `ulpf_lib::library_abi` has the whole of it.

use core::ops::Range;
use core::sync::atomic::Ordering::*;

use linux_raw_sys::general as k;
use ulpf_engine::exec::{AliasMap, Open};
use ulpf_lib::guard::maps::{Snapshot, Vma, VmaKind};
use ulpf_lib::library_abi::{AccessReport, CALL, CONCERNS, COPY, HELLO, RUNS, Run, SHARED, TELL};
use ulpf_lib::{AccessKind, TargetAddr, place, sys};

use crate::shared::S;

/// The stub has seen that we are here. (It has, as soon as our handler of SIGSEGV is installed.)
#[inline]
pub fn present() -> bool {
    S.table.stub.load(SeqCst) != 0
}

fn call(op: u64, a: u64, b: u64, c: u64) -> Option<u64> {
    // SAFETY: an operation that Linux does not know, or the stub's, which checks what it is given.
    unsafe { sys!(k::__NR_prctl, CALL, op, a, b, c) }.ok()
}

/// Tells the stub of accesses. `true`: the thread is to stop for them.
pub fn report(told: &AccessReport) -> bool {
    call(TELL, core::ptr::from_ref(told) as u64, 0, 0) == Some(1)
}

/// Is there one? Also before it knows of us.
pub fn ask() -> bool {
    call(HELLO, 0, 0, 0).is_some()
}

/// It takes its memory where we take ours: we begin in the middle of what is left.
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

/// Copies the program's memory as the program knows it, without a hit; how many bytes.
///
/// # Safety
/// What lies at `to`, if something does, may be changed.
pub unsafe fn copy(to: u64, from: u64, len: u64) -> Option<u64> {
    call(COPY, to, from, len)
}

/// Is such an access of these bytes one that it has to see?
fn concerns(addr: u64, len: u64, kind: AccessKind) -> bool {
    call(CONCERNS, addr, len, kind as u64) == Some(1)
}

/// The page map for performing: an access in its place is not made from a thunk, where the stub would meet
/// it at an address that the program does not have.
pub struct Map;

impl AliasMap for Map {
    fn open(&self, addr: TargetAddr, len: u64, kind: AccessKind) -> Open {
        match AliasMap::open(&S.table.pages, addr, len, kind) {
            Open::Plain if present() && concerns(addr.0, len, kind) => Open::Split,
            other => other,
        }
    }
}

/// What the stub has moved, as the program knows it.
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

/// /proc/self/maps shows what the stub has made of the program's mappings; puts right what it shows.
pub fn put_right(snapshot: &mut Snapshot) {
    if !present() {
        return;
    }
    let mut before = runs();
    loop {
        if let Ok(now) = Snapshot::read() {
            *snapshot = now;
        }
        // The stub may have changed something between one look and the other.
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
