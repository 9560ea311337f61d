//! Several threads at once. Each has bytes of its own, often neighbours of another's in the same word,
//! so that what it does is known whatever the others do. A thread's code is a program by itself.

use super::{Member, Plan};
use crate::asm::Asm;
use crate::corpus::Rng;
use crate::program::*;
use crate::threads::{code_at, control_at};
use std::rc::Rc;

/// The bytes of one thread: address and length, in order.
#[derive(Debug)]
pub struct Windows(Vec<(u64, u64)>);

impl Member {
    pub fn asm(&self) -> Asm {
        Asm::at(code_at(self.number), control_at(self.number))
    }
}

/// The plans of 2 to 4 threads.
pub fn threads(judge: Judge, seed: u64) -> Vec<Plan> {
    let mut rng = Rng(super::mix(seed, 0xc4e3));
    let count = 2 + rng.below(3);
    let epochs = 1 + rng.below(3) as usize;
    let mut windows: Vec<Vec<(u64, u64)>> = vec![vec![]; count as usize + 1];
    for arena in ARENAS {
        let end = arena + ARENA_LEN as u64 - 4096;
        let mut at = arena + 4096;
        while at < end {
            let len = match rng.below(6) {
                0 => 1 + rng.below(16),
                1 => 16 + rng.below(200),
                2..=3 => 200 + rng.below(700),
                _ => 600 + rng.below(3000),
            };
            let len = len.min(end - at);
            // The last window belongs to no thread.
            let owner = rng.below(6 * count + 1) / 6;
            windows[owner as usize].push((at, len));
            at += len;
        }
    }
    let watches: Vec<_> = (0..epochs).map(|_| super::watches(&mut rng)).collect();
    (0..count)
        .map(|number| {
            let mut plan = Plan::new(judge, super::mix(seed, 0x100 + number));
            plan.seed = seed;
            // The first thread's children would inherit its filters, but they are judged by
            // themselves.
            plan.more.seccomp = number > 0 && seed % 8 == 2;
            plan.more.made = seed / 10 % 2 == 1;
            plan.epochs.truncate(epochs);
            while plan.epochs.len() < epochs {
                let last = plan.epochs.last().cloned();
                plan.epochs.extend(last);
            }
            for (e, w) in plan.epochs.iter_mut().zip(&watches) {
                e.watches = w.clone();
            }
            plan.member = Some(Member {
                number,
                windows: Rc::new(Windows::new(&windows[number as usize])),
            });
            plan
        })
        .collect()
}

impl Windows {
    /// Neighbours become one.
    fn new(list: &[(u64, u64)]) -> Windows {
        let mut out: Vec<(u64, u64)> = vec![];
        for &(at, len) in list {
            match out.last_mut() {
                Some(last) if last.0 + last.1 == at => last.1 += len,
                _ => out.push((at, len)),
            }
        }
        Windows(out)
    }

    /// Whether all of it belongs to the thread.
    pub fn hold(&self, addr: u64, len: u64) -> bool {
        let n = self.0.partition_point(|w| w.0 <= addr);
        n > 0 && self.0[n - 1].0 + self.0[n - 1].1 >= addr + len
    }

    pub fn target(&self, rng: &mut Rng, watches: &[Watch], len: u64, align: u64) -> u64 {
        let len = len.max(align);
        for _ in 0..8 {
            if watches.is_empty() || rng.chance(3) {
                break;
            }
            let w = watches[rng.below(watches.len() as u64) as usize];
            let at = match rng.below(3) {
                0 => w.addr + rng.below(w.len),
                1 => (w.addr + rng.below(2 * len + 2)).wrapping_sub(len + 1),
                _ => (w.addr + w.len + rng.below(2 * len + 2)).wrapping_sub(len + 1),
            } & !(align - 1);
            if self.hold(at, len) {
                return at;
            }
        }
        for _ in 0..32 {
            let (start, room) = self.0[rng.below(self.0.len() as u64) as usize];
            if room < len {
                continue;
            }
            let page = (start + room) & !4095;
            let at = match rng.below(4) {
                // At the neighbours, across a page edge, anywhere.
                0 => start,
                1 => start + room - len,
                2 if page > start => page.saturating_sub(rng.below(len + 1)).max(start),
                _ => start + rng.below(room - len + 1),
            };
            let at = at.next_multiple_of(align);
            if self.hold(at, len) {
                return at;
            }
        }
        // It strays, and is left out.
        self.0.first().map_or(ARENAS[0], |w| w.0) & !(align - 1)
    }

    /// A start, and a mask of the offsets from it that a loop may take.
    pub fn stretch(&self, rng: &mut Rng) -> (u64, i32) {
        let mut best = (0, 0);
        for _ in 0..6 {
            let (start, len) = self.0[rng.below(self.0.len() as u64) as usize];
            let start = start.next_multiple_of(64);
            let room = (len.saturating_sub(64 + 32)).checked_ilog2().unwrap_or(0);
            let mask = (1i32 << room) - 1;
            if mask >= best.1 {
                best = (start, mask);
            }
        }
        best
    }
}
