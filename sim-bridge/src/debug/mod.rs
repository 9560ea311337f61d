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

mod arm;
mod hits;
pub mod watch;
mod watches;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use ulpf_lib::WatchKind;
use ulpf_rsp::reports::Hit;
use unicorn_engine::Unicorn;
use watch::{Page, Piece, Watch};

/// Why the machine has come to a stop.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Pause {
    Step,
    Interrupt,
    Breakpoint,
    /// The first accessed byte of a watch.
    Watch(u64, WatchKind),
    /// A request is waiting that can be answered while the program runs; it continues at once.
    Attention,
}

#[derive(Default)]
pub struct Debug {
    /// A debugger is there.
    pub active: bool,
    pub breakpoints: HashSet<u64>,
    /// Instructions until a stop.
    pub steps: Option<u64>,
    pub interrupt: Arc<AtomicBool>,
    pub attention: Arc<AtomicBool>,
    /// For the user: conditions that cannot be evaluated.
    pub messages: Vec<String>,
    pub paused: Option<Pause>,
    pub log: VecDeque<Hit>,
    /// The last hit's number.
    pub sequence: u64,
    /// The number of the hit at which the machine has stopped, or 0.
    pub stop: u64,
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
    /// Values of the watches before a system call, which may change them.
    before: Vec<(u64, Vec<u8>)>,
}

impl Debug {
    pub fn is_idle(&self) -> bool {
        !self.active
    }

    pub fn watches(&self) -> impl Iterator<Item = (u64, &Watch)> {
        self.watches.iter().map(|(&id, w)| (id, w))
    }

    /// Those with this number and higher ones, ascending.
    pub fn watches_from(&self, from: u64) -> impl Iterator<Item = (u64, &Watch)> {
        self.watches.range(from..).map(|(&id, w)| (id, w))
    }

    pub fn has_watches(&self) -> bool {
        !self.watches.is_empty()
    }

    /// The machine is about to go on.
    pub fn goes_on(&mut self, steps: Option<u64>) {
        self.steps = steps;
        self.first = true;
        self.paused = None;
        self.stop = 0;
    }

    /// As if it had not paused.
    pub fn goes_on_as_before(&mut self) {
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
                // A step is over soon.
                None if self.attention.load(Relaxed) => {
                    self.attention.store(false, Relaxed);
                    self.first = first;
                    Some(Pause::Attention)
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
}

#[cfg(test)]
mod tests {
    use super::watch::WatchRequest;
    use super::*;
    use crate::mmu::{NONE, RO, RW};
    use ulpf_lib::AccessKind;
    use ulpf_lib::filter::{Condition, Filter};
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
        let (a, changed) = d.add(AT + 0xffc, 8, WatchKind::Write);
        assert_eq!(changed, [(AT, RO), (AT + 0x1000, RO)]);
        let (b, changed) = d.add(AT + 8, 8, WatchKind::Read);
        assert_eq!(changed, [(AT, NONE)]);
        assert_eq!(d.add(AT + 16, 1, WatchKind::Write).1, []);
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
        let (id, _) = d.add(AT + 4, 4, WatchKind::Write);
        d.goes_on(None);
        assert!(!store(&mut d, &mut uc, AT, &[1, 2, 3, 4]), "beside it");
        assert!(!store(&mut d, &mut uc, AT + 4, &[0; 4]), "silent");
        assert!(
            store(&mut d, &mut uc, AT + 2, &[5, 5, 6, 0]),
            "its first byte"
        );
        assert_eq!(d.paused, Some(Pause::Watch(AT + 4, WatchKind::Write)));
        let hit = d.log.back().unwrap();
        assert_eq!((hit.watch, hit.pc, hit.addr, hit.len), (id, 7, AT + 4, 2));
        assert_eq!((&hit.old[..], &hit.new[..]), (&[0, 0][..], &[6, 0][..]));
        assert_eq!(d.stop, hit.sequence);
        let w = d.watches().next().unwrap().1;
        let c = &w.counts;
        assert_eq!((c.hits, c.silent, d.false_positives), (2, 1, 1));
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
        d.add(AT, 4, WatchKind::Read);
        d.add(AT + 8, 4, WatchKind::Access);
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
        d.add(AT, 8, WatchKind::Access);
        d.goes_on(None);
        d.touched(&uc, 7, AT, 4, false);
        assert!(store(&mut d, &mut uc, AT, &[3, 0, 0, 0]));
        assert_eq!(d.log.len(), 1);
        assert_eq!((d.log[0].old[0], d.log[0].new[0]), (0, 3));
        assert_eq!(d.log[0].access, AccessKind::ReadWrite);
        // A store alone has read nothing.
        d.goes_on(None);
        assert!(store(&mut d, &mut uc, AT, &[4]));
        assert_eq!(d.log[1].access, AccessKind::Write);
    }

    /// A read watch also sees that the instruction has written, and a write watch that it has read.
    #[test]
    fn both_halves_of_an_instruction() {
        for kind in [WatchKind::Read, WatchKind::Write] {
            let (mut d, mut uc) = (Debug::default(), memory());
            d.active = true;
            d.add(AT, 8, kind);
            d.goes_on(None);
            d.touched(&uc, 7, AT, 4, false);
            assert!(store(&mut d, &mut uc, AT, &[3, 0, 0, 0]));
            assert_eq!(d.log[0].access, AccessKind::ReadWrite, "{kind:?}");
        }
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
    fn attention_changes_nothing() {
        let (mut d, uc) = (Debug::default(), memory());
        d.breakpoints.insert(5);
        d.goes_on(None);
        d.attention.store(true, Relaxed);
        assert!(d.begins(&uc, 5, 1) && d.paused == Some(Pause::Attention));
        d.goes_on_as_before();
        assert!(!d.begins(&uc, 5, 1), "where it stood");
        d.attention.store(true, Relaxed);
        assert!(d.begins(&uc, 5, 1) && d.paused == Some(Pause::Attention));
        d.goes_on_as_before();
        assert!(d.begins(&uc, 5, 1) && d.paused == Some(Pause::Breakpoint));
    }

    /// A watch that only logs does not stop the program. A hit that a filter rejects is counted, and not
    /// logged.
    #[test]
    fn logs_and_filters() {
        let (mut d, mut uc) = (Debug::default(), memory());
        let logged = WatchRequest {
            stop: false,
            filter: None,
        };
        let (log, _) = d.add_as(AT, 4, WatchKind::Write, logged);
        d.goes_on(None);
        assert!(!store(&mut d, &mut uc, AT, &[1]));
        // $new == 2, once.
        let filter = Filter {
            conditions: vec![Condition::new(vec![0x2c, 0xff, 1, 0x22, 2, 0x13, 0x27]).unwrap()],
            count: Some(1),
            ..Filter::default()
        };
        let request = WatchRequest {
            stop: true,
            filter: Some(filter),
        };
        let (filtered, _) = d.add_as(AT + 8, 1, WatchKind::Write, request);
        for (value, stops) in [(1, false), (2, true), (3, false), (2, false)] {
            d.goes_on(None);
            assert_eq!(store(&mut d, &mut uc, AT + 8, &[value]), stops, "{value}");
        }
        let of = |id| &d.watches().find(|w| w.0 == id).unwrap().1.counts;
        assert_eq!((of(log).hits, of(log).stops, of(log).filtered), (1, 0, 0));
        let w = of(filtered);
        assert_eq!((w.hits, w.stops, w.filtered), (4, 1, 3));
        assert_eq!(
            d.log.iter().map(|h| h.watch).collect::<Vec<_>>(),
            [log, filtered]
        );
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
        d.add(AT, 16, WatchKind::Write);
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
