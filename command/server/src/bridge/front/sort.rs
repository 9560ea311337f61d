//! Evaluates a hit: which watches count it, which log it, and whether the program stops. A back end that numbers watches
//! does this itself. For the others the front end decides, from the hit's values and the registers and memory of the
//! stopped program.
#![forbid(unsafe_code)]

use super::Front;
use crate::bridge::packets::{self, WatchStop, with_reason};
use crate::bridge::watch_table::{PLACE, Watch};
use std::collections::HashMap;
use ulpf_lib::agent::AgentError;
use ulpf_lib::filter::Program;
use ulpf_lib::{AccessKind, WatchKind};
use ulpf_rsp::reports::{Hit, Role};

/// `BLOCK`: bytes read at once for a condition. `FETCHES`: limit of such reads for one condition.
const BLOCK: u64 = 64;
const FETCHES: usize = 64;
/// Longest value in bytes that is kept for back ends that report no values.
const VALUE: u64 = 32;
/// The protocol's SIGTRAP.
const TRAP: u8 = 5;

/// Known registers and memory of the stopped program. A missing block is noted, and read before the next attempt.
struct Stopped {
    registers: Vec<u8>,
    /// The bytes of fs_base, if the stub has it.
    thread_pointer: Option<std::ops::Range<usize>>,
    blocks: HashMap<u64, Vec<u8>>,
    missing: Option<u64>,
}

impl Stopped {
    fn number(&self, bytes: std::ops::Range<usize>) -> Option<u64> {
        let bytes = self.registers.get(bytes)?;
        let mut word = [0; 8];
        word.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(u64::from_le_bytes(word))
    }
}

impl Program for Stopped {
    fn register(&mut self, number: u16) -> Option<u64> {
        self.number(packets::register(number.into())?)
    }

    fn read(&mut self, addr: u64, to: &mut [u8]) -> bool {
        for (n, byte) in to.iter_mut().enumerate() {
            let at = addr.wrapping_add(n as u64);
            let Some(block) = self.blocks.get(&(at & !(BLOCK - 1))) else {
                self.missing = Some(at & !(BLOCK - 1));
                return false;
            };
            match block.get((at % BLOCK) as usize) {
                Some(b) => *byte = *b,
                None => return false,
            }
        }
        true
    }

    fn process(&mut self) -> u64 {
        1
    }

    fn thread_pointer(&mut self) -> Option<u64> {
        self.number(self.thread_pointer.clone()?)
    }
}

impl Front {
    /// The stop to report, or `None` if the program is to continue.
    pub(super) async fn sorted(&mut self, stop: Vec<u8>) -> Option<Vec<u8>> {
        let Some(watch) = WatchStop::of(&stop) else {
            return Some(stop);
        };
        let role = self.role();
        if role == Role::Commands {
            return Some(stop);
        }
        let (mut hits, mut first) = (vec![], 0);
        if role == Role::Watches {
            // A back end that does not answer has stopped nevertheless.
            if let Ok(new) = self.new_hits(super::look::ALL).await {
                (hits, first) = (new.hits, new.stop);
            }
        } else {
            hits = self.hits_of(&stop, &watch).await;
        }
        let (mut report, mut known) = (None, false);
        for mut hit in hits {
            let Some(number) = self.table.number(hit.watch) else {
                continue;
            };
            known = true;
            let (log, stays) = match role {
                // Hits of the same instruction have numbers from the first one on.
                Role::Watches => self.as_decided(number, &hit, first != 0 && hit.sequence >= first),
                _ => self.judged(number, &mut hit).await,
            };
            let Some(mirror) = &mut self.mirror else {
                continue;
            };
            let record = mirror.hit(number, &hit, log);
            self.show(number, false);
            if !stays {
                continue;
            }
            let Some(w) = self.table.watches.get(&number) else {
                continue;
            };
            let record = (!w.debuggers).then_some(record);
            // GDB ignores stops by watches other than its own, unless they are plain traps.
            let reason = match (w.debuggers, self.table.understood) {
                (true, _) => Some((w.spec.kind, hit.addr)),
                (false, true) => Some((WatchKind::Access, PLACE)),
                (false, false) => None,
            };
            let here = with_reason(&stop, TRAP, reason);
            match report {
                None => {
                    self.table.stop = record;
                    report = Some(here);
                }
                // Each is reported, one after the other.
                Some(_) => self.also.push_back((number, here, record)),
            }
        }
        match report {
            Some(stop) => Some(stop),
            // A hit of a watch that is no longer in the table.
            None if !known => Some(stop),
            None => None,
        }
    }

    /// The hits behind a stop reply, of all watches that it may be of. The stub reports an address only.
    async fn hits_of(&mut self, stop: &[u8], watch: &WatchStop) -> Vec<Hit> {
        let pc = match crate::packets::pc_in(stop) {
            Some(pc) => pc,
            None => {
                let registers = self.registers().await;
                let bytes = registers.get(128..136).and_then(|b| b.try_into().ok());
                bytes.map_or(0, u64::from_le_bytes)
            }
        };
        let access = watch.access.unwrap_or(match watch.kind {
            WatchKind::Write => AccessKind::Write,
            WatchKind::Read | WatchKind::Access => AccessKind::Read,
        });
        let of = |number: u32, w: &Watch| Hit {
            sequence: number.into(),
            watch: w.there.unwrap_or_default(),
            pc,
            thread: packets::thread_number(stop).unwrap_or(1),
            access,
            addr: watch.addr,
            len: 1,
            old: vec![],
            new: vec![],
            system_call: false,
        };
        let numbers = self.table.hit_by(watch).into_iter();
        numbers
            .filter_map(|n| Some(of(n, self.table.watches.get(&n)?)))
            .collect()
    }

    /// A back end that numbers watches has decided itself: only hits that count are reported. `now`: the hit belongs to
    /// the last instruction. Returns whether the hit is logged and whether it stops.
    fn as_decided(&self, number: u32, hit: &Hit, now: bool) -> (bool, bool) {
        let Some(w) = self.table.watches.get(&number) else {
            return (false, false);
        };
        let stays = now && w.stop && !(hit.is_silent() && w.spec.kind == WatchKind::Write);
        (w.log || w.stop, stays)
    }

    /// Evaluates a hit here. Returns whether it is logged and whether it stops.
    async fn judged(&mut self, number: u32, hit: &mut Hit) -> (bool, bool) {
        self.learn_values(number, hit).await;
        let silent = hit.is_silent();
        let Some(w) = self.table.watches.get_mut(&number) else {
            return (false, false);
        };
        w.counts.hits += 1;
        w.counts.silent += u64::from(silent);
        if w.filter.is_some() && !self.passes(number, hit).await {
            if let Some(w) = self.table.watches.get_mut(&number) {
                w.counts.filtered += 1;
            }
            return (false, false);
        }
        let Some(w) = self.table.watches.get_mut(&number) else {
            return (false, false);
        };
        let stays = w.stop && !(silent && w.spec.kind == WatchKind::Write);
        w.counts.stops += u64::from(stays);
        (w.log || w.stop, stays)
    }

    /// The bytes of the watch now, and at the last look.
    async fn learn_values(&mut self, number: u32, hit: &mut Hit) {
        let Some(spec) = self.table.watches.get(&number).map(|w| w.spec) else {
            return;
        };
        if spec.len > VALUE {
            return;
        }
        let Ok(remote) = self.remote() else { return };
        let Ok(new) = remote.read(spec.addr, spec.len).await else {
            return;
        };
        let old = self.values.insert(number, new.clone());
        (hit.addr, hit.len, hit.new) = (spec.addr, spec.len, new);
        hit.old = old.unwrap_or_default();
    }

    async fn passes(&mut self, number: u32, hit: &Hit) -> bool {
        let registers = self.registers().await;
        let mut program = Stopped {
            thread_pointer: self.thread_pointer(registers.len()).await,
            registers,
            blocks: HashMap::new(),
            missing: None,
        };
        for _ in 0..FETCHES {
            let Some(Watch {
                spec,
                filter: Some(filter),
                passed,
                counts,
                ..
            }) = self.table.watches.get(&number)
            else {
                return true;
            };
            let candidate = hit.candidate(filter, spec.addr, spec.len, counts.hits);
            let mut passed = *passed;
            let count = || {
                passed += 1;
                passed - 1
            };
            let verdict = filter.passes(&candidate, &mut program, count);
            let Some(missing) = program.missing.take() else {
                if let Some(w) = self.table.watches.get_mut(&number) {
                    w.passed = passed;
                }
                if let Some(why) = verdict.failed {
                    self.tell_failure(number, hit, why);
                }
                return verdict.passes;
            };
            let block = match self.remote() {
                Ok(remote) => remote.read(missing, BLOCK).await.unwrap_or_default(),
                Err(_) => vec![],
            };
            program.blocks.insert(missing, block);
        }
        true
    }

    fn tell_failure(&mut self, number: u32, hit: &Hit, why: AgentError) {
        let Some(w) = self.table.watches.get_mut(&number) else {
            return;
        };
        if !std::mem::replace(&mut w.reported, true) {
            self.to_tell.push(format!(
                "ulpf: the condition of watch {number} on {:#x} ({} bytes) cannot be evaluated for the access at {:#x}: {why}; such hits count as if it held, and no more is said about them\n",
                w.spec.addr, w.spec.len, hit.pc
            ));
        }
    }
}
