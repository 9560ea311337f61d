// SPDX-License-Identifier: GPL-2.0-or-later
//! What a debugger wants of the machine: breakpoints, steps, and watches that the modelled hardware
//! serves.
//!
//! ```text
//!   watches ─▶ pages' permissions ─▶ an access faults ─▶ touched() ─┐ the instruction's accesses
//!   next instruction begins (or a system call returns) ─▶ begins() ─┴▶ old and new compared ─▶ a hit, a stop
//! ```
//! The machine stops before an instruction, so at a hit the PC is the one behind it, as on x86. The hook
//! that sees an instruction begin asks nothing but `is_idle` while there is no debugger.

use crate::machine::{State, Uc};
use crate::memory::PAGE;
use crate::mmu::{NONE, RO, RW};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use unicorn_engine::Unicorn;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Write,
    Read,
    Access,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Watch {
    pub addr: u64,
    pub len: u64,
    pub kind: Kind,
    pub hits: u64,
    /// Writes that left the value as it was.
    pub silent: u64,
}

/// One instruction's (or system call's) accesses to one watch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hit {
    pub sequence: u64,
    pub watch: u64,
    pub pc: u64,
    pub thread: u64,
    pub write: bool,
    /// What was accessed of the watch, and its bytes (at most [`VALUE`]).
    pub addr: u64,
    pub len: u64,
    pub old: Vec<u8>,
    pub new: Vec<u8>,
    pub system_call: bool,
}

/// Why the machine has come to a stop.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Pause {
    Step,
    Interrupt,
    Breakpoint,
    Watch(Hit, Kind),
}

/// Bytes of a hit that are kept.
const VALUE: u64 = 64;
/// Hits that are kept for who asks later.
const LOG: usize = 1 << 16;
/// Bytes of all watches together; larger ones are refused.
pub const MAX_WATCHED: u64 = 1 << 30;

struct Piece {
    addr: u64,
    len: u64,
    write: bool,
    old: Vec<u8>,
}

/// The watches of one page, and which of its bytes they cover: most accesses to a busy page touch none.
struct Page {
    ids: BTreeSet<u64>,
    bits: [u64; PAGE as usize / 64],
}

impl Default for Page {
    fn default() -> Page {
        Page {
            ids: BTreeSet::new(),
            bits: [0; PAGE as usize / 64],
        }
    }
}

impl Page {
    fn cover(&mut self, page: u64, w: &Watch) {
        let (from, to) = (w.addr.max(page), (w.addr + w.len).min(page + PAGE));
        for byte in from - page..to - page {
            self.bits[byte as usize / 64] |= 1 << (byte % 64);
        }
    }

    fn covers(&self, page: u64, addr: u64, end: u64) -> bool {
        let (from, to) = (addr.max(page), end.min(page + PAGE));
        (from - page..to - page).any(|byte| self.bits[byte as usize / 64] >> (byte % 64) & 1 != 0)
    }
}

#[derive(Default)]
pub struct Debug {
    /// A debugger is there.
    pub active: bool,
    pub breakpoints: HashSet<u64>,
    /// Instructions until a stop.
    pub steps: Option<u64>,
    pub interrupt: Arc<AtomicBool>,
    pub paused: Option<Pause>,
    pub log: VecDeque<Hit>,
    /// The last hit's number.
    pub sequence: u64,
    pub false_positives: u64,
    watches: BTreeMap<u64, Watch>,
    /// Their bytes.
    watched: u64,
    next: u64,
    pages: HashMap<u64, Page>,
    pieces: Vec<Piece>,
    /// The instruction that these pieces are of.
    pc: u64,
    /// The next instruction is the first since the machine went on.
    first: bool,
    /// What system calls may change: the watches' values before one.
    before: Vec<(u64, Vec<u8>)>,
}

impl Debug {
    pub fn is_idle(&self) -> bool {
        !self.active
    }

    pub fn watches(&self) -> impl Iterator<Item = (u64, &Watch)> {
        self.watches.iter().map(|(&id, w)| (id, w))
    }

    pub fn has_watches(&self) -> bool {
        !self.watches.is_empty()
    }

    /// Its number, and the permissions of the pages that are different now.
    pub fn add(&mut self, addr: u64, len: u64, kind: Kind) -> (u64, Vec<(u64, u8)>) {
        self.next += 1;
        let id = self.next;
        let w = Watch {
            addr,
            len,
            kind,
            hits: 0,
            silent: 0,
        };
        let pages = pages(&w);
        self.watched += len;
        self.watches.insert(id, w);
        let change = |page| {
            let was = self.permission(page);
            let entry = self.pages.entry(page).or_default();
            entry.ids.insert(id);
            entry.cover(page, &self.watches[&id]);
            let is = self.permission(page);
            (was != is).then_some((page, is))
        };
        (id, pages.filter_map(change).collect())
    }

    /// `None`: there is no such watch.
    pub fn remove(&mut self, id: u64) -> Option<Vec<(u64, u8)>> {
        let all = pages(self.watches.get(&id)?);
        let was: Vec<_> = all.clone().map(|p| (p, self.permission(p))).collect();
        self.watched -= self.watches.remove(&id).map_or(0, |w| w.len);
        for page in all {
            let Some(mut entry) = self.pages.remove(&page) else {
                continue;
            };
            entry.ids.remove(&id);
            if !entry.ids.is_empty() {
                let ids = std::mem::take(&mut entry.ids);
                entry.bits.fill(0);
                for w in ids.iter().filter_map(|id| self.watches.get(id)) {
                    entry.cover(page, w);
                }
                self.pages.insert(page, Page { ids, ..entry });
            }
        }
        let now = was.into_iter().map(|(p, old)| (p, old, self.permission(p)));
        Some(now.filter(|c| c.1 != c.2).map(|c| (c.0, c.2)).collect())
    }

    /// What a page has to forbid for its watches.
    fn permission(&self, page: u64) -> u8 {
        let Some(Page { ids, .. }) = self.pages.get(&page) else {
            return RW;
        };
        match ids
            .iter()
            .all(|id| self.watches.get(id).is_none_or(|w| w.kind == Kind::Write))
        {
            true => RO,
            false => NONE,
        }
    }

    pub fn guards(&self, addr: u64) -> bool {
        self.pages.contains_key(&(addr & !(PAGE - 1)))
    }

    fn overlapping(&self, addr: u64, len: u64) -> Vec<u64> {
        let end = addr.saturating_add(len);
        let mut ids: Vec<u64> = (addr & !(PAGE - 1)..end)
            .step_by(PAGE as usize)
            .filter_map(|page| self.pages.get(&page).filter(|p| p.covers(page, addr, end)))
            .flat_map(|p| &p.ids)
            .copied()
            .filter(|id| {
                self.watches
                    .get(id)
                    .is_some_and(|w| addr < w.addr + w.len && w.addr < end)
            })
            .collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// An access to a guarded page is about to be made. Is any of it watched (in whatever way)?
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

    /// The machine is about to go on.
    pub fn goes_on(&mut self, steps: Option<u64>) {
        self.steps = steps;
        self.first = true;
        self.paused = None;
    }

    /// The instruction at `pc` is next; true: the machine is to stop before it.
    pub fn begins<D>(&mut self, uc: &Unicorn<D>, pc: u64, thread: u64) -> bool {
        let first = std::mem::take(&mut self.first);
        self.settle(uc, thread, false);
        if self.paused.is_none() {
            self.paused = match self.steps {
                Some(0) => Some(Pause::Step),
                _ if self.interrupt.load(Relaxed) => {
                    self.interrupt.store(false, Relaxed);
                    Some(Pause::Interrupt)
                }
                _ if !first && !self.breakpoints.is_empty() && self.breakpoints.contains(&pc) => {
                    Some(Pause::Breakpoint)
                }
                _ => None,
            };
        }
        if let Some(n) = &mut self.steps {
            *n = n.saturating_sub(1);
        }
        self.paused.is_some()
    }

    /// What was accessed is done: who has hit, and does anybody want to stop for it?
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
            Kind::Write => p.write,
            Kind::Read => !p.write,
            Kind::Access => true,
        };
        // What of the watch was accessed, in its own order: the pieces of one operand belong together.
        let (mut from, mut to, mut write) = (u64::MAX, 0, false);
        let (end, mut found) = (w.addr + w.len, vec![]);
        for p in pieces.iter().filter(wanted) {
            let (a, b) = (p.addr.max(w.addr), (p.addr + p.len).min(end));
            if a < b {
                (from, to, write) = (from.min(a), to.max(b), write | p.write);
                found.push(p);
            }
        }
        if found.is_empty() {
            return;
        }
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
        w.hits += 1;
        let silent = write && old == new;
        w.silent += u64::from(silent);
        self.sequence += 1;
        let hit = Hit {
            sequence: self.sequence,
            watch: id,
            pc: self.pc,
            thread,
            write,
            addr: from,
            len: to - from,
            old,
            new,
            system_call,
        };
        if self.paused.is_none() && !(w.kind == Kind::Write && silent) {
            self.paused = Some(Pause::Watch(hit.clone(), w.kind));
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
            (w.kind != Kind::Read).then_some((id, value))
        };
        self.before = self.watches.iter().filter_map(value).collect();
    }

    /// It has been made by the instruction at `pc`. What it wrote without a change nobody knows.
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

impl State {
    /// A watch for a debugger. The error says why not, and what to do.
    pub fn arm(&mut self, uc: &mut Uc, addr: u64, len: u64, kind: Kind) -> Result<u64, String> {
        if len == 0 || addr.checked_add(len).is_none() {
            return Err(format!("{len} bytes at {addr:#x} are no memory"));
        }
        if self.debug.watched + len > MAX_WATCHED {
            return Err(format!(
                "all watches together would have more than {MAX_WATCHED} bytes; watch less"
            ));
        }
        if !self.space.is_mapped(addr, len) {
            return Err(format!(
                "nothing is mapped at {addr:#x} (+{len}); set the watch when the program has this memory"
            ));
        }
        if self.mmu.cr18 != 0 || self.device.is_ours() {
            return Err("the program has a handler for user-level page faults itself, and the machine has one such handler; use `--backend signal`".into());
        }
        let (id, changes) = self.debug.add(addr, len, kind);
        self.mmu.write_once = false;
        for (page, permission) in changes {
            self.set_permission(uc, page, permission);
        }
        Ok(id)
    }

    /// False: there is no such watch.
    pub fn disarm(&mut self, uc: &mut Uc, id: u64) -> bool {
        let Some(changes) = self.debug.remove(id) else {
            return false;
        };
        for (page, permission) in changes {
            self.set_permission(uc, page, permission);
        }
        self.mmu.write_once = !self.debug.has_watches() && self.watches.is_empty();
        true
    }
}

fn pages(w: &Watch) -> impl Iterator<Item = u64> + Clone + use<> {
    (w.addr & !(PAGE - 1)..w.addr + w.len).step_by(PAGE as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use unicorn_engine::unicorn_const::{Arch, Mode, Prot};

    const AT: u64 = 0x10000;

    fn memory() -> Unicorn<'static, ()> {
        let mut uc = Unicorn::new(Arch::X86, Mode::MODE_64).unwrap();
        uc.mem_map(AT, 0x4000, Prot::ALL).unwrap();
        uc
    }

    fn store(d: &mut Debug, uc: &mut Unicorn<'static, ()>, addr: u64, value: &[u8]) -> bool {
        d.touched(uc, 7, addr, value.len() as u64, true);
        uc.mem_write(addr, value).unwrap();
        d.begins(uc, 9, 1)
    }

    #[test]
    fn permissions_follow_the_watches() {
        let mut d = Debug::default();
        let (a, changed) = d.add(AT + 0xffc, 8, Kind::Write);
        assert_eq!(changed, [(AT, RO), (AT + 0x1000, RO)]);
        let (b, changed) = d.add(AT + 8, 8, Kind::Read);
        assert_eq!(changed, [(AT, NONE)]);
        assert_eq!(d.add(AT + 16, 1, Kind::Write).1, []);
        assert_eq!(d.remove(b).unwrap(), [(AT, RO)]);
        assert_eq!(d.remove(a).unwrap(), [(AT + 0x1000, RW)]);
        assert_eq!(d.remove(a), None);
    }

    #[test]
    fn a_write_stops_where_the_value_changes() {
        let (mut d, mut uc) = (
            Debug {
                active: true,
                ..Debug::default()
            },
            memory(),
        );
        let (id, _) = d.add(AT + 4, 4, Kind::Write);
        d.goes_on(None);
        assert!(!store(&mut d, &mut uc, AT, &[1, 2, 3, 4]), "beside it");
        assert!(!store(&mut d, &mut uc, AT + 4, &[0; 4]), "silent");
        assert!(
            store(&mut d, &mut uc, AT + 2, &[5, 5, 6, 0]),
            "its first byte"
        );
        let Some(Pause::Watch(hit, Kind::Write)) = d.paused.clone() else {
            panic!("{:?}", d.paused)
        };
        assert_eq!((hit.watch, hit.pc, hit.addr, hit.len), (id, 7, AT + 4, 2));
        assert_eq!((hit.old, hit.new), (vec![0, 0], vec![6, 0]));
        let w = d.watches().next().unwrap().1;
        assert_eq!((w.hits, w.silent, d.false_positives), (2, 1, 1));
    }

    #[test]
    fn reads_and_both() {
        let (mut d, mut uc) = (
            Debug {
                active: true,
                ..Debug::default()
            },
            memory(),
        );
        d.add(AT, 4, Kind::Read);
        d.add(AT + 8, 4, Kind::Access);
        d.goes_on(None);
        assert!(!store(&mut d, &mut uc, AT, &[1]), "no read");
        d.touched(&uc, 7, AT, 4, false);
        assert!(d.begins(&uc, 9, 1));
        d.goes_on(None);
        assert!(
            store(&mut d, &mut uc, AT + 8, &[0]),
            "of an access watch also silent ones"
        );
    }

    /// The load of a read-modify-write and its store are one hit.
    #[test]
    fn one_hit_an_instruction() {
        let (mut d, mut uc) = (
            Debug {
                active: true,
                ..Debug::default()
            },
            memory(),
        );
        d.add(AT, 8, Kind::Access);
        d.goes_on(None);
        d.touched(&uc, 7, AT, 4, false);
        assert!(store(&mut d, &mut uc, AT, &[3, 0, 0, 0]));
        assert_eq!(d.log.len(), 1);
        assert_eq!(
            (d.log[0].old[0], d.log[0].new[0], d.log[0].write),
            (0, 3, true)
        );
    }

    #[test]
    fn steps_breakpoints_interrupts() {
        let (mut d, uc) = (
            Debug {
                active: true,
                ..Debug::default()
            },
            memory(),
        );
        d.breakpoints.insert(5);
        d.goes_on(None);
        assert!(!d.begins(&uc, 5, 1), "where it stood");
        assert!(d.begins(&uc, 5, 1) && d.paused == Some(Pause::Breakpoint));
        d.goes_on(Some(1));
        assert!(!d.begins(&uc, 5, 1));
        assert!(d.begins(&uc, 6, 1) && d.paused == Some(Pause::Step));
        d.goes_on(None);
        d.interrupt.store(true, Relaxed);
        assert!(d.begins(&uc, 6, 1) && d.paused == Some(Pause::Interrupt));
        assert!(!d.interrupt.load(Relaxed));
    }

    #[test]
    fn what_a_system_call_wrote() {
        let (mut d, mut uc) = (
            Debug {
                active: true,
                ..Debug::default()
            },
            memory(),
        );
        d.add(AT, 16, Kind::Write);
        d.goes_on(None);
        d.before_call(&uc);
        uc.mem_write(AT + 2, &[1, 0, 1]).unwrap();
        d.after_call(&uc, 3, 1);
        let hit = d.log.back().unwrap();
        assert_eq!(
            (hit.addr, hit.len, hit.system_call, hit.pc),
            (AT + 2, 3, true, 3)
        );
        assert!(d.begins(&uc, 5, 1));
    }
}
