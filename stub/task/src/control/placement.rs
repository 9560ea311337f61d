//! Where a watch lives: on a guarded page, or in one of the four debug registers.
//!
//! A guard costs a fault for every access to the page. A register costs a trap for every hit, and a trap costs more
//! than a fault. So guards are the rule. A register pays off for a small watch that is seldom hit, on a page in
//! constant use: a local variable, the head of an arena.
//!
//! ```text
//!            false positives of a page: 1024, 2048, 4096, …
//!   guard ──────────────────────────────────────────────────▶ register
//!         FAULT × false positives ≥ 1/8 of the time, and ≥ 2 × TRAP × hits;
//!         every watch of the page fits one of the registers that are free
//!   guard ◀────────────────────────────────────────────────── register
//!         TRAP × hits ≥ 1/8 of the time: a trial of 1024 false positives
//! ```
//! The number of faults that a guard would cost is unknown while there is no guard. So a watch whose register is hit
//! often gets a guard on trial; if it returns to a register, the next trial comes after twice as many hits. A placement
//! that the user forces does not change. Everything here runs on the stub's task with the world stopped.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::*;

use ulpf_lib::command::Placement;
use ulpf_lib::command::reply::{PlacementState, RegisterCounts};
use ulpf_lib::staged::Changes;
use ulpf_lib::sys::Errno;
use ulpf_lib::{TargetAddr, WatchId, WatchKind, WatchRange};
use ulpf_stub_handlers::global::g;
use ulpf_stub_handlers::hits::{FIRST_LOOK, page_counters};
use ulpf_stub_handlers::runtime::debug_registers::SLOTS;
use ulpf_stub_handlers::runtime::thread::Thread;

use super::perf::{self, Ring};
use super::placer::{DebugRegister, Look, fits, hits, live, now};
use super::watches::refusal;
use super::{Control, text};
use crate::files::read_file;
use crate::inferior::Refusal;

/// Cycles that an access to a guarded page costs, and a hit in a debug register (BENCHMARKS.md). Only
/// their ratio matters much.
const FAULT: u64 = 5_500;
const TRAP: u64 = 50_000;
/// Less than this part of the time is not worth a register.
const WORTH: f64 = 1.0 / 8.0;

/// Hits in a register before the second trial of a guard.
const TRIAL: u64 = 128;

impl Control {
    /// Returns whether a watch that the user wants in a debug register can be put there.
    pub fn check_register(&mut self, range: WatchRange, kind: WatchKind) -> Result<(), Refusal> {
        let what = format!(
            "no debug register for {} bytes at {}",
            range.len, range.start
        );
        let no = |why: &str, todo: &str| Err(refusal(what.clone(), why.into(), todo.into()));
        if kind == WatchKind::Read {
            return no(
                "x86 has debug registers for writes and for all accesses, not for reads alone",
                "watch reads and writes (rw, awatch), or leave the watch to page guards (placement auto or guard)",
            );
        }
        if !fits(range, kind) {
            return no(
                "a debug register holds 1, 2, 4 or 8 bytes at a multiple of their number",
                "watch a smaller part, or leave the watch to page guards (placement auto or guard)",
            );
        }
        let mut byte = [0u8];
        if range.end().0 > ulpf_lib::addr::USER_END || text::read(range.start.0, &mut byte) != 1 {
            return no(
                "the program has no memory there",
                "check the address, or set the watch once the memory is allocated",
            );
        }
        let taken = |c: &Control| {
            let staged = c.placement.forced.iter();
            staged.filter(|id| c.staged.holds(**id)).count()
        };
        if taken(self) >= SLOTS {
            return no(
                "all four debug registers are taken by other watches",
                "remove one of them, or leave the watch to page guards (placement auto or guard)",
            );
        }
        if self.placement.free() == 0 {
            return Ok(()); // the kernel has given them to us already
        }
        let tid = g().pid.load(Relaxed);
        let tid = self.threads_first().unwrap_or(tid);
        let tried = Ring::new(tid).and_then(|ring| perf::breakpoint(tid, range, kind, Some(&ring)));
        match tried {
            Ok(fd) => {
                perf::close(fd);
                Ok(())
            }
            Err(e) => {
                let (why, todo) = words(e);
                Err(refusal(what, why, todo.into()))
            }
        }
    }

    fn threads_first(&self) -> Option<i32> {
        live().map(|t| t.tid()).next()
    }

    /// A watch that has just been staged is to live in a register.
    pub fn force_register(&mut self, id: WatchId) {
        if !self.placement.forced.contains(&id) {
            self.placement.forced.push(id);
        }
    }

    /// After a commit: registers of watches that are gone become free, forced ones get theirs.
    pub fn place(&mut self, changes: &Changes) {
        for (id, ..) in &changes.removed {
            if let Some(n) = self.placement.slot_of(*id) {
                self.placement.release(n);
            }
        }
        let mut forced = core::mem::take(&mut self.placement.forced);
        forced.retain(|id| self.staged.list().get(*id).is_some());
        for id in &forced {
            if self.placement.in_register(*id) {
                continue;
            }
            let Some((range, kind)) = self.staged.list().get(*id) else {
                continue;
            };
            // A watch that was put there without the user's request gives way.
            if self.placement.free() == 0 {
                let ours = self
                    .placement
                    .held
                    .iter()
                    .position(|h| h.as_ref().is_some_and(|h| !forced.contains(&h.id)));
                if let Some(n) = ours {
                    self.placement.release(n);
                }
            }
            if let Err(e) = self.hold(*id, range, kind) {
                let (why, todo) = words(e);
                let text = format!(
                    "ulpf: {} bytes at {}: not in a debug register but on a guarded page: {why}; {todo}\n",
                    range.len, range.start
                );
                self.warn(&text);
            }
        }
        self.placement.forced = forced;
    }

    fn hold(&mut self, id: WatchId, range: WatchRange, kind: WatchKind) -> Result<(), Errno> {
        self.placement.hold(DebugRegister {
            id,
            range,
            kind,
            since: now(),
            hits: hits(id),
        })
    }

    /// Puts the watches of a page that cannot be guarded into registers, for good: all, or none (`false`).
    pub fn leave_page(&mut self, page: u64) -> bool {
        let Some(here) = self.watches_on(page) else {
            return false;
        };
        let new = |w: &(WatchId, WatchRange, WatchKind)| !self.placement.in_register(w.0);
        let new: Vec<_> = here.into_iter().filter(new).collect();
        let fits = |w: &(WatchId, WatchRange, WatchKind)| {
            fits(w.1, w.2) && g().attributes(w.0).placement != Placement::Guard
        };
        if new.len() > self.placement.free() || !new.iter().all(fits) {
            return false;
        }
        for (id, range, kind) in &new {
            if self.hold(*id, *range, *kind).is_err() {
                for (id, ..) in &new {
                    if let Some(n) = self.placement.slot_of(*id) {
                        self.placement.release(n);
                    }
                }
                return false;
            }
        }
        self.placement.pages.remove(&page);
        true
    }

    /// A task that is about to run its first instruction.
    pub fn adopt(&mut self, t: &'static Thread) {
        self.placement.sweep();
        match self.placement.adopt(t) {
            Ok(()) | Err(Errno(3)) => {}
            Err(e) => {
                let (why, _) = words(e);
                self.warn(&format!(
                    "ulpf: a new thread gets no debug registers ({why}); their watches are on guarded pages from here on\n"
                ));
                let forced = core::mem::take(&mut self.placement.forced);
                self.placement.release_all();
                self.placement.forced = forced;
                self.placement.unavailable = Some(e);
                self.apply_guards();
            }
        }
    }

    /// A page has had many false positives, or a register many hits: reconsiders the placement of its watches.
    pub fn reconsider(&mut self, page: u64) {
        self.placement.looks += 1;
        // The longer a page stays as it is, the more rarely it is examined: each time stops the world.
        if let Some(n) = page_counters(TargetAddr(page)) {
            n.look_at
                .store(2 * n.false_positives.load(Relaxed), Relaxed);
        }
        let here = self.watches_on(page);
        let Some(here) = here else { return };
        let changed = if here.iter().any(|w| self.placement.in_register(w.0)) {
            self.consider_guard(page, &here)
        } else {
            self.consider_registers(page, &here)
        };
        if changed {
            self.placement.moves += 1;
            self.apply_guards();
        }
    }

    /// The watches of a page, if they are few enough for registers.
    fn watches_on(&self, page: u64) -> Option<Vec<(WatchId, WatchRange, WatchKind)>> {
        let mut all = Vec::new();
        let mut many = false;
        self.staged.list().for_each_overlap(
            TargetAddr(page),
            ulpf_lib::PAGE_SIZE,
            &mut |id, range, kind| {
                if all.len() < SLOTS {
                    all.push((id, range, kind));
                } else {
                    many = true;
                }
            },
        );
        (!many).then_some(all)
    }

    fn consider_registers(&mut self, page: u64, here: &[(WatchId, WatchRange, WatchKind)]) -> bool {
        let Some(counters) = page_counters(TargetAddr(page)) else {
            return false;
        };
        let false_positives = counters.false_positives.load(Relaxed);
        let movable = |w: &(WatchId, WatchRange, WatchKind)| {
            fits(w.1, w.2) && g().attributes(w.0).placement == Placement::Auto
        };
        if self.placement.unavailable.is_some()
            || here.len() > self.placement.free()
            || !here.iter().all(movable)
        {
            return false;
        }
        let look = Look {
            at: now(),
            false_positives,
            hits: here.iter().map(|w| hits(w.0)).sum(),
            least_hits: self.placement.pages.get(&page).map_or(0, |l| l.least_hits),
        };
        let Some(last) = self.placement.pages.insert(page, look) else {
            return false; // nothing to compare with yet
        };
        let time = look.at.saturating_sub(last.at).max(1) as f64;
        let faults = look.false_positives.saturating_sub(last.false_positives) * FAULT;
        let traps = look.hits.saturating_sub(last.hits) * TRAP;
        let cost = faults as f64 / time;
        if cost < WORTH || faults < 2 * traps {
            return false;
        }
        for (id, range, kind) in here {
            if let Err(e) = self.hold(*id, *range, *kind) {
                // All or none: the others alone would save no fault.
                for (id, ..) in here {
                    if let Some(n) = self.placement.slot_of(*id) {
                        self.placement.release(n);
                    }
                }
                // Registers that other programs use may become free; other errors are permanent.
                if e.0 as u32 != linux_raw_sys::errno::ENOSPC {
                    self.placement.unavailable = Some(e);
                }
                return false;
            }
        }
        true
    }

    fn consider_guard(&mut self, page: u64, here: &[(WatchId, WatchRange, WatchKind)]) -> bool {
        let Some(look) = self.placement.pages.get_mut(&page) else {
            return false; // forced
        };
        let time = now();
        let ours = |id: WatchId| here.iter().any(|w| w.0 == id);
        let forced = &self.placement.forced;
        let mut dear = false;
        for held in self.placement.held.iter_mut().flatten() {
            if !ours(held.id) || forced.contains(&held.id) {
                continue;
            }
            let count = hits(held.id);
            let traps = count.saturating_sub(held.hits);
            if traps < look.least_hits {
                continue;
            }
            let cost = (traps * TRAP) as f64 / time.saturating_sub(held.since).max(1) as f64;
            dear |= cost >= WORTH;
            (held.since, held.hits) = (time, count);
        }
        if !dear {
            return false;
        }
        let counters = page_counters(TargetAddr(page));
        let false_positives = counters.map_or(0, |n| n.false_positives.load(Relaxed));
        *look = Look {
            at: time,
            false_positives,
            hits: here.iter().map(|w| hits(w.0)).sum(),
            least_hits: (2 * look.least_hits).max(TRIAL),
        };
        if let Some(n) = counters {
            n.look_at.store(false_positives + FIRST_LOOK, Relaxed);
        }
        for (id, ..) in here {
            if let Some(n) = self.placement.slot_of(*id)
                && !self.placement.forced.contains(id)
            {
                self.placement.release(n);
            }
        }
        true
    }

    /// For `monitor ulpf placement`.
    pub fn placement_state(&self) -> PlacementState {
        let p = &self.placement;
        PlacementState {
            placement: p.wanted,
            registers: SLOTS as u64,
            used: (SLOTS - p.free()) as u64,
            counts: Some(RegisterCounts {
                threads: p.tasks.len() as u64,
                moves: p.moves,
                looks: p.looks,
            }),
            unavailable: p.unavailable.map(|e| words(e).0),
        }
    }
}

/// Why the kernel has refused, and what to do.
fn words(e: Errno) -> (String, &'static str) {
    use linux_raw_sys::errno as n;
    const GUARD: &str = "leave the watch to page guards (placement auto or guard)";
    match e.0 as u32 {
        n::EACCES | n::EPERM => {
            let paranoid = read_file("/proc/sys/kernel/perf_event_paranoid\0")
                .and_then(|t| String::from_utf8(t).ok());
            let paranoid = paranoid.as_deref().map_or("unknown", str::trim);
            (
                format!(
                    "the kernel does not permit perf events here (kernel.perf_event_paranoid is {paranoid}; a container's seccomp filter, yama or the limit of locked memory may forbid them as well)"
                ),
                "sudo sysctl kernel.perf_event_paranoid=2, or leave the watch to page guards (placement auto or guard)",
            )
        }
        n::ENOSPC => (
            "other users of the debug registers (another debugger, perf) have taken them".into(),
            "end them, or leave the watch to page guards (placement auto or guard)",
        ),
        n::EMFILE | n::ENFILE => (
            "there are too many threads for the limit of open files".into(),
            "raise it (ulimit -n), or leave the watch to page guards (placement auto or guard)",
        ),
        n::EINVAL | n::E2BIG => (
            "this kernel has no synchronous perf breakpoints (Linux 5.13 or later has)".into(),
            GUARD,
        ),
        n::ENOSYS | n::ENOENT | n::ENODEV | n::EOPNOTSUPP => (
            "this machine or kernel has no perf breakpoints".into(),
            GUARD,
        ),
        e => (format!("the kernel refuses (error {e})"), GUARD),
    }
}
