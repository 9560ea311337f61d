//! A stub in the same process (`ulpf gdb`, `ulpf run`, …): what it has to be told, and what only it knows.
//!
//! It watches the program as it watches any other, this library with it. Our guards are protections that
//! the program has set: the stub guards what lies beneath them, and faults on them come to us. But what we perform
//! through an alias, it does not see at the program's address: so it is told ([`tell`]). Where an access has
//! a part that we leave in its place, and the stub guards that, the instruction is stepped instead
//! ([`Map`]). `ulpf_lib::door` has the whole of it.

use core::ops::Range;
use core::sync::atomic::Ordering::*;

use linux_raw_sys::general as k;
use ulpf_engine::access::AccessList;
use ulpf_engine::exec::{AliasMap, Open};
use ulpf_lib::door::{CALL, CONCERNS, COPY, HELLO, Made, RUNS, Run, SHARED, TELL, Told};
use ulpf_lib::guard::maps::{Snapshot, Vma, VmaKind};
use ulpf_lib::{AccessKind, PAGE_SIZE, TargetAddr, place, sys};

use crate::shared::S;
use crate::stacks::Block;

/// The stub has seen that we are here. (It has, as soon as our handler of SIGSEGV is installed.)
#[inline]
pub fn present() -> bool {
    S.door.stub.load(SeqCst) != 0
}

fn call(op: u64, a: u64, b: u64, c: u64) -> Option<u64> {
    // SAFETY: an operation that Linux does not know, or the stub's, which checks what it is given.
    unsafe { sys!(k::__NR_prctl, CALL, op, a, b, c) }.ok()
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
pub fn copy(to: u64, from: u64, len: u64) -> Option<u64> {
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
        match AliasMap::open(&S.door.pages, addr, len, kind) {
            Open::Plain if present() && concerns(addr.0, len, kind) => Open::Split,
            other => other,
        }
    }
}

// ---- what was performed -------------------------------------------------------------------------

/// Most accesses of one instruction.
const MOST: usize = 64;

/// Bytes of old values that a thread can keep.
pub const OLD: usize = 12 << 10;

/// Keeps what these accesses are about to change. (Between `enter` and `leave`.)
pub fn before(b: &mut Block, list: &AccessList) -> bool {
    let total: u64 = list.iter().map(|a| a.len).sum();
    if !present() || total > OLD as u64 {
        return false;
    }
    let mut to = b.old.as_mut_ptr() as u64;
    for a in list.iter() {
        if !old(to, a.addr.0, a.len) {
            return false;
        }
        to += a.len;
    }
    true
}

/// Copies what stands in moved memory, and elsewhere.
pub fn old(to: u64, from: u64, len: u64) -> bool {
    let mut done = 0;
    while done < len {
        let at = TargetAddr(from + done);
        let n = (PAGE_SIZE - at.0 % PAGE_SIZE).min(len - done);
        match S.door.pages.entry(at).alias(at) {
            // SAFETY: the alias of memory that stays where it is until `leave`; room by the caller's promise.
            Some(alias) => unsafe {
                core::ptr::copy_nonoverlapping(
                    alias.0 as *const u8,
                    (to + done) as *mut u8,
                    n as usize,
                )
            },
            None if copy(to + done, at.0, n) == Some(n) => {}
            None => return false,
        }
        done += n;
    }
    true
}

/// Tells of an instruction that was performed: `context` is what we return to; `kept`: what [`before`] has
/// answered. `true`: the thread is to stop for it.
pub fn tell(b: &Block, pc: u64, context: u64, list: &AccessList, kept: bool) -> bool {
    if !present() {
        return false;
    }
    let mut made = [Made::default(); MOST];
    let mut count = 0;
    for (to, a) in made.iter_mut().zip(list.iter()) {
        *to = Made {
            addr: a.addr.0,
            len: a.len,
            kind: a.kind as u64,
        };
        count += 1;
    }
    let old = match kept {
        true => b.old.as_ptr() as u64,
        false => 0,
    };
    let told = Told {
        pc,
        context,
        stack: b.bounds(),
        made: made.as_ptr() as u64,
        count,
        old,
        nr: -1,
        args: [0; 6],
        result: 0,
    };
    call(TELL, &raw const told as u64, 0, 0) == Some(1)
}

/// Tells of a system call that has moved bytes between these places and somewhere else.
pub fn tell_call(
    b: &Block,
    (nr, pc, args): (u32, u64, [u64; 6]),
    made: &[Made],
    old: u64,
    result: i64,
) {
    let told = Told {
        pc,
        context: 0,
        stack: b.bounds(),
        made: made.as_ptr() as u64,
        count: made.len() as u64,
        old,
        nr: nr.into(),
        args,
        result,
    };
    let _ = call(TELL, &raw const told as u64, 0, 0);
}

// ---- how the program's memory looks -------------------------------------------------------------

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
