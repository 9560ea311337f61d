//! Evaluates a hit: which watches count it, which log it, and whether the program stops. A back end with filters does
//! this itself. For the others the front end decides, from the hit's values and the registers and memory of the stopped
//! program.
#![forbid(unsafe_code)]

use super::Front;
use crate::bridge::packets;
use crate::bridge::watch_table::Watch;
use std::collections::HashMap;
use ulpf_bridge::filter::Program;
use ulpf_bridge::{Bytes, Feature, Hit, Kind, Reason, Request, Stop};
use ulpf_lib::agent::AgentError;

/// `BLOCK`: bytes read at once for a condition. `FETCHES`: limit of such reads for one condition.
const BLOCK: u64 = 64;
const FETCHES: usize = 64;
/// Longest value in bytes that is kept for back ends that report no values.
const VALUE: u64 = 32;

/// Known registers and memory of the stopped program. A missing block is noted, and read before the next attempt.
struct Stopped {
    registers: Vec<u8>,
    blocks: HashMap<u64, Vec<u8>>,
    missing: Option<u64>,
}

impl Program for Stopped {
    fn register(&mut self, number: u16) -> Option<u64> {
        let bytes = self.registers.get(packets::register(number.into())?)?;
        let mut word = [0; 8];
        word.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(u64::from_le_bytes(word))
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
        self.register(58)
    }
}

impl Front {
    /// The stop to report, or `None` if the program is to continue.
    pub(super) async fn sorted(&mut self, stop: Stop) -> Option<Stop> {
        let Reason::Watch { kind, hit } = &stop.reason else {
            return Some(stop);
        };
        if self.forwards() {
            return Some(stop);
        }
        self.thread = stop.thread;
        self.registers = None;
        let can = self.can();
        let mut hits = vec![];
        if can.has(Feature::Hits) {
            // A back end that does not answer has stopped nevertheless.
            hits = self.news(super::look::ALL).await.unwrap_or_default();
        }
        if !hits.iter().any(|h| h.sequence == hit.sequence) {
            hits.push(hit.clone());
        }
        let mut told = None;
        for mut hit in hits {
            let Some(number) = self.table.number(hit.watch) else {
                continue;
            };
            let (log, stays) = match can.has(Feature::Filters) {
                true => self.as_told(number, &hit, &stop),
                false => self.judged(number, &mut hit).await,
            };
            let Some(mirror) = &mut self.mirror else {
                continue;
            };
            let record = mirror.hit(number, &hit, log);
            self.show(number, false);
            if !stays {
                continue;
            }
            let out_of_band = self
                .table
                .watches
                .get(&number)
                .is_some_and(|w| !w.debuggers);
            let here = Stop {
                reason: Reason::Watch { kind: *kind, hit },
                ..stop.clone()
            };
            match told {
                None => {
                    self.table.stop = out_of_band.then_some(record);
                    told = Some(here);
                }
                // Each is reported, one after the other.
                Some(_) => self.also.push_back((here, out_of_band.then_some(record))),
            }
        }
        match told {
            Some(stop) => Some(stop),
            // A hit of a watch that is no longer in the table.
            None if self.table.number(hit.watch).is_none() => Some(stop),
            None => None,
        }
    }

    /// A back end with filters has decided itself: only hits that count are reported. Returns whether the hit is logged
    /// and whether it stops.
    fn as_told(&self, number: u32, hit: &Hit, stop: &Stop) -> (bool, bool) {
        // The back end stops after the instruction: hits from the stop's number on belong to that instruction.
        let now =
            matches!(&stop.reason, Reason::Watch { hit: h, .. } if h.sequence <= hit.sequence);
        let silent = hit.is_silent();
        let Some(w) = self.table.watches.get(&number) else {
            return (false, false);
        };
        let stays = now && w.stop && !(silent && w.kind == Kind::Write);
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
        let stays = w.stop && !(silent && w.kind == Kind::Write);
        w.counts.stops += u64::from(stays);
        (w.log || w.stop, stays)
    }

    /// For back ends that report only an address: the bytes now, and at the last look.
    async fn learn_values(&mut self, number: u32, hit: &mut Hit) {
        let Some((addr, len)) = self.table.watches.get(&number).map(|w| (w.addr, w.len)) else {
            return;
        };
        if !hit.new.0.is_empty() || len > VALUE {
            return;
        }
        let Ok(new) = self.data(Request::Read { addr, len }).await else {
            return;
        };
        let old = self.values.insert(number, new.clone());
        (hit.addr, hit.len, hit.new) = (addr, len, Bytes(new));
        hit.old = Bytes(old.unwrap_or_default());
    }

    async fn passes(&mut self, number: u32, hit: &Hit) -> bool {
        let registers = self.registers().await.unwrap_or_default();
        let mut program = Stopped {
            registers,
            blocks: HashMap::new(),
            missing: None,
        };
        for _ in 0..FETCHES {
            let Some(Watch {
                addr,
                len,
                filter: Some(filter),
                passed,
                counts,
                ..
            }) = self.table.watches.get(&number)
            else {
                return true;
            };
            let candidate = hit.candidate(filter, *addr, *len, counts.hits);
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
            let block = Request::Read {
                addr: missing,
                len: BLOCK,
            };
            let block = self.data(block).await.unwrap_or_default();
            program.blocks.insert(missing, block);
        }
        true
    }

    fn tell_failure(&mut self, number: u32, hit: &Hit, why: AgentError) {
        let Some(w) = self.table.watches.get_mut(&number) else {
            return;
        };
        if !std::mem::replace(&mut w.told, true) {
            self.to_tell.push(format!(
                "ulpf: the condition of watch {number} on {:#x} ({} bytes) cannot be evaluated for the access at {:#x}: {why}; such hits count as if it held, and no more is said about them\n",
                w.addr, w.len, hit.pc
            ));
        }
    }
}
