// SPDX-License-Identifier: GPL-2.0-or-later
//! From accesses to hits: what an instruction, or a system call, did to which watch, and whether that counts.

use super::watch::{Piece, Watch};
use super::{Debug, Pause};
use crate::memory::PAGE;
use crate::registers::GENERAL;
use ulpf_lib::filter::Program;
use ulpf_lib::{AccessKind, WatchKind};
use ulpf_rsp::reports::Hit;
use unicorn_engine::{RegisterX86 as R, Unicorn};

/// Bytes of a hit that are kept.
const VALUE: u64 = 64;
/// Hits kept for later requests.
const LOG: usize = 1 << 16;

/// The machine between two instructions, for conditions.
struct Stopped<'a, 'd, D>(&'a Unicorn<'d, D>);

impl<D> Program for Stopped<'_, '_, D> {
    fn register(&mut self, number: u16) -> Option<u64> {
        // As gdb numbers them: behind the instruction pointer come the flags.
        let flags = (usize::from(number) == GENERAL.len()).then_some(&R::EFLAGS);
        self.0
            .reg_read(*GENERAL.get(usize::from(number)).or(flags)?)
            .ok()
    }

    fn read(&mut self, addr: u64, to: &mut [u8]) -> bool {
        self.0.mem_read(addr, to).is_ok()
    }

    fn process(&mut self) -> u64 {
        std::process::id().into()
    }

    fn thread_pointer(&mut self) -> Option<u64> {
        self.0.reg_read(R::FS_BASE).ok()
    }
}

fn passes<D>(w: &mut Watch, hit: &Hit, uc: &Unicorn<D>, messages: &mut Vec<String>) -> bool {
    let Some(filter) = &w.request.filter else {
        return true;
    };
    let candidate = hit.candidate(filter, w.addr, w.len, w.counts.hits);
    let passed = || {
        w.passed += 1;
        w.passed - 1
    };
    let verdict = filter.passes(&candidate, &mut Stopped(uc), passed);
    if let Some(why) = verdict
        .failed
        .filter(|_| !std::mem::replace(&mut w.reported, true))
    {
        messages.push(format!(
            "ulpf: the condition of a watch on {:#x} ({} bytes) cannot be evaluated for the access at {:#x}: {why}; such hits count as if it held, and no more is said about them",
            w.addr, w.len, hit.pc
        ));
    }
    verdict.passes
}

impl Debug {
    /// An access to a guarded page is about to be made. Returns whether any of it is watched, with any kind.
    pub fn touched<D>(
        &mut self,
        uc: &Unicorn<D>,
        pc: u64,
        addr: u64,
        len: u64,
        write: bool,
    ) -> bool {
        if self.overlapping(addr, len).is_empty() {
            self.false_positives += 1;
            if let Some(page) = self.pages.get_mut(&(addr & !(PAGE - 1))) {
                page.false_positives += 1;
            }
            return false;
        }
        self.pc = pc;
        let again = |p: &Piece| (p.addr, p.len, p.write) == (addr, len, write);
        if !self.pieces.iter().any(again) {
            let old = uc
                .mem_read_as_vec(addr, len.min(VALUE) as usize)
                .unwrap_or_default();
            self.pieces.push(Piece {
                addr,
                len,
                write,
                old,
            });
        }
        true
    }

    /// The accesses are done: records the hits of all watches that they overlap, and requests a stop if one
    /// wants it.
    pub fn settle<D>(&mut self, uc: &Unicorn<D>, thread: u64, system_call: bool) {
        if self.pieces.is_empty() {
            return;
        }
        let pieces = std::mem::take(&mut self.pieces);
        let mut ids: Vec<u64> = pieces
            .iter()
            .flat_map(|p| self.overlapping(p.addr, p.len))
            .collect();
        ids.sort_unstable();
        ids.dedup();
        for id in ids {
            self.settle_one(uc, id, &pieces, thread, system_call);
        }
    }

    fn settle_one<D>(
        &mut self,
        uc: &Unicorn<D>,
        id: u64,
        pieces: &[Piece],
        thread: u64,
        system_call: bool,
    ) {
        let Some(w) = self.watches.get_mut(&id) else {
            return;
        };
        let wanted = |p: &&Piece| match w.kind {
            WatchKind::Write => p.write,
            WatchKind::Read => !p.write,
            WatchKind::Access => true,
        };
        // The accessed range of the watch, in the watch's own order: the pieces of one operand belong
        // together.
        let (mut from, mut to) = (u64::MAX, 0);
        let (end, mut found) = (w.addr + w.len, vec![]);
        for p in pieces.iter().filter(wanted) {
            let (a, b) = (p.addr.max(w.addr), (p.addr + p.len).min(end));
            if a < b {
                (from, to) = (from.min(a), to.max(b));
                found.push(p);
            }
        }
        if found.is_empty() {
            return;
        }
        // An instruction that changes an operand has read it first.
        let with = |write: bool| {
            let mut same = pieces.iter().filter(|p| p.write == write);
            same.any(|p| p.addr < to && from < p.addr + p.len)
        };
        let (write, read) = (with(true), with(false));
        let len = (to - from).min(VALUE);
        let new = uc.mem_read_as_vec(from, len as usize).unwrap_or_default();
        let mut old = new.clone();
        // The first piece has seen a byte as it was; later ones may have seen it written.
        for p in found.iter().rev() {
            for (n, &b) in p.old.iter().enumerate() {
                let at = (p.addr + n as u64).wrapping_sub(from);
                if let Some(o) = old.get_mut(at as usize).filter(|_| at < len) {
                    *o = b;
                }
            }
        }
        w.counts.hits += 1;
        let silent = write && old == new;
        w.counts.silent += u64::from(silent);
        let hit = Hit {
            sequence: self.sequence + 1,
            watch: id,
            pc: self.pc,
            thread,
            access: match (write, read) {
                (true, true) => AccessKind::ReadWrite,
                (true, false) => AccessKind::Write,
                (false, _) => AccessKind::Read,
            },
            addr: from,
            len: to - from,
            old,
            new,
            system_call,
        };
        if w.request.filter.is_some() && !passes(w, &hit, uc, &mut self.messages) {
            w.counts.filtered += 1;
            return;
        }
        self.sequence += 1;
        if w.request.stop && self.paused.is_none() && !(w.kind == WatchKind::Write && silent) {
            w.counts.stops += 1;
            self.paused = Some(Pause::Watch(hit.addr, w.kind));
            self.stop = self.sequence;
        }
        if self.log.len() == LOG {
            self.log.pop_front();
        }
        self.log.push_back(hit);
    }

    /// A system call is about to be made: it may write to watched memory, behind the hardware's back.
    pub fn before_call<D>(&mut self, uc: &Unicorn<D>) {
        let value = |(&id, w): (&u64, &Watch)| {
            let value = uc.mem_read_as_vec(w.addr, w.len as usize).ok()?;
            (w.kind != WatchKind::Read).then_some((id, value))
        };
        self.before = self.watches.iter().filter_map(value).collect();
    }

    /// The system call at `pc` is done. Writes that changed nothing are not detected.
    pub fn after_call<D>(&mut self, uc: &Unicorn<D>, pc: u64, thread: u64) {
        for (id, old) in std::mem::take(&mut self.before) {
            let Some(w) = self.watches.get(&id) else {
                continue;
            };
            let addr = w.addr;
            let Ok(new) = uc.mem_read_as_vec(addr, old.len()) else {
                continue;
            };
            let differs = |n: &usize| old[*n] != new[*n];
            let Some(first) = (0..old.len()).find(differs) else {
                continue;
            };
            let last = (0..old.len()).rev().find(differs).unwrap_or(first);
            let piece = Piece {
                addr: addr + first as u64,
                len: (last - first + 1) as u64,
                write: true,
                old: old[first..=last]
                    .iter()
                    .take(VALUE as usize)
                    .copied()
                    .collect(),
            };
            self.pc = pc;
            self.settle_one(uc, id, &[piece], thread, true);
        }
    }
}
