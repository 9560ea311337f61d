//! Takes over the heap of another stub (`check/adopt.rs` of the handlers). A forked child has the heap of its parent's
//! stub. A running program may have the heap that an earlier check has left.
//!
//! ```text
//! malloc: mov r11, entry; jmp r11 ─▶ entry of the earlier image, which serves alone     no thread may be in there
//!                               └──▶ entry of ours, from now on                          the same books, with guards
//! ```

use alloc::vec::Vec;
use core::mem::offset_of;
use core::ops::Range;
use core::sync::atomic::Ordering::*;

use ulpf_lib::boot::BootArgs;
use ulpf_lib::command::HeapCheck;
use ulpf_lib::guard::PROT_EXEC;
use ulpf_lib::guard::maps::{Snapshot, Vma, VmaKind};
use ulpf_lib::{TargetAddr, place};
use ulpf_stub_handlers::check::adopt::{self, Adopted};
use ulpf_stub_handlers::check::arena::{self, START};
use ulpf_stub_handlers::check::entries::{self, JUMP};
use ulpf_stub_handlers::check::findings::findings;
use ulpf_stub_handlers::check::heap;
use ulpf_stub_handlers::check::twin::Twin;
use ulpf_stub_handlers::global::{boot_block, g, machine};
use ulpf_stub_handlers::runtime::asm::ulpf_slots;
use ulpf_stub_handlers::unwind;
use ulpf_stub_tables::calls::{SLOT, SLOTS};

use super::check::{MOST_CHUNK, NO_ROOM, books, books_by, configure, no, plant};
use super::functions::bytes;
use super::watches::no_numbers;
use super::{Control, parked, text};
use crate::inferior::Refusal;

/// Number of times that threads get the time to leave the earlier image.
const TRIES: usize = 1000;

/// The image of an earlier stub that serves this program's heap, if it is of this version.
fn earlier() -> Option<Twin> {
    let maps = Snapshot::read().ok()?;
    let (start, end) = machine().image;
    let code = |v: &&Vma| v.prot & PROT_EXEC != 0 && v.kind == VmaKind::Anonymous;
    let own = maps.vmas.iter().filter(code);
    let own = own.clone().find(|v| (start..end).contains(&v.start))?;
    let len = own.end - own.start;
    let others = maps.vmas.iter().filter(code);
    let others = others.filter(|v| v.start != own.start && v.end - v.start == len);
    let twins = others.map(|v| Twin {
        away: v.start.wrapping_sub(own.start),
    });
    let mut same = twins.filter(|twin| {
        let all = twin.theirs(start)..twin.theirs(end);
        is_mapped(&maps, all) && have_same_code(own.start..own.end, *twin)
    });
    // (An image that could not be unmapped may be there, too, to which no function leads any more.)
    let leads = |twin: Twin| adopt::places(twin).any(|(at, jump)| bytes(at) == Some(jump));
    same.find(|twin| adopt::is_left(*twin) && leads(*twin))
}

fn is_mapped(maps: &Snapshot, range: Range<u64>) -> bool {
    let within = |v: &Vma| {
        v.end
            .min(range.end)
            .saturating_sub(v.start.max(range.start))
    };
    let mapped: u64 = maps.vmas.iter().filter(|v| v.prot != 0).map(within).sum();
    mapped == range.end - range.start
}

fn have_same_code(own: Range<u64>, twin: Twin) -> bool {
    const PIECE: u64 = 64 << 10;
    // (Code is written into the slots.)
    let slots = ulpf_slots as *const () as u64;
    let parts = [own.start..slots, slots + (SLOT * SLOTS) as u64..own.end];
    let mut pieces = [
        alloc::vec![0; PIECE as usize],
        alloc::vec![0; PIECE as usize],
    ];
    let mut same = |at: u64, end: u64| {
        let [ours, theirs] = pieces.each_mut().map(|p| p.get_mut(..(end - at) as usize));
        let (Some(ours), Some(theirs)) = (ours, theirs) else {
            return false;
        };
        text::read(at, ours) == ours.len()
            && text::read(twin.theirs(at), theirs) == theirs.len()
            && ours == theirs
    };
    parts.into_iter().all(|part| {
        let mut at = part.clone().step_by(PIECE as usize);
        at.all(|at| same(at, part.end.min(at + PIECE)))
    })
}

impl Control {
    /// A forked child's heap is that of the stub with this boot block, whose image the child still has.
    pub(super) fn adopt_parents_heap(&mut self, args: u64) -> Result<(), Refusal> {
        let own = boot_block() as u64;
        let twin = Twin {
            away: args.wrapping_sub(own),
        };
        self.adopt_heap(twin)?;
        self.begin_to_serve();
        Ok(())
    }

    /// Excludes the image and the records that an earlier check has left. (The blocks are memory of the program.)
    pub(super) fn exclude_remains(&mut self) {
        let Some(twin) = earlier() else { return };
        let (start, end) = machine().image;
        let guards = self.world.stopped().guards();
        let image = (twin.theirs(start), end - start);
        for (at, len) in books_by(|number| twin.number(number)).chain([image]) {
            guards.exclude(TargetAddr(at), len);
        }
    }

    /// The heap is the one that an earlier stub has left, if there is one. Its image goes at the end.
    pub(super) fn take_over_heap(&mut self, how: &HeapCheck) -> Option<Result<(), Refusal>> {
        earlier().map(|twin| self.take_over(twin, how))
    }

    fn take_over(&mut self, twin: Twin, how: &HeapCheck) -> Result<(), Refusal> {
        if !self.leaves_image(twin) {
            return Err(no(
                "some thread is always in its allocator, which an earlier check still serves",
                "try again",
            ));
        }
        self.adopt_heap(twin)?;
        configure(how)?;
        heap::settle(how.quarantine, how.redzone);
        let (start, end) = machine().image;
        // (The program's filters may let certain calls pass from there alone.)
        let gate = twin.theirs(boot_block() as u64) + offset_of!(BootArgs, left_gate) as u64;
        if text::word(gate) == Some(0) {
            place::add(twin.theirs(start), end - start);
        }
        self.begin_to_serve();
        self.look_for_old_blocks();
        Ok(())
    }

    /// Lets threads leave that image. `false`: some thread is always in it.
    fn leaves_image(&mut self, twin: Twin) -> bool {
        for _ in 0..TRIES {
            if !self.is_in_use(twin) {
                return true;
            }
            if !self.goes_on_a_moment() {
                return false;
            }
        }
        false
    }

    /// Returns whether some thread is in that image, or has been called by it.
    fn is_in_use(&mut self, twin: Twin) -> bool {
        let (start, end) = machine().image;
        let image = twin.theirs(start)..twin.theirs(end);
        let functions: Vec<u64> = adopt::places(twin).map(|place| place.0).collect();
        let begun = |at: u64| {
            let mut all = functions.iter();
            all.find(|function| (1..JUMP as u64).contains(&at.wrapping_sub(**function)))
        };
        let stopped = self.world.stopped();
        g().threads.iter().any(|t| {
            let Some(context) = parked::frame(t, stopped) else {
                return parked::is_unsettled(t);
            };
            // Half of the jump has had no effect yet.
            if let Some(function) = begun(context.gprs.rip) {
                context.gprs.rip = *function;
            }
            // (A copy of first instructions has no unwind tables.)
            let is_there =
                |at: u64| image.contains(&at) || begun(at).is_some() || adopt::is_in_copy(at, twin);
            unwind::comes_from(&context.gprs, text::word, is_there)
        })
    }

    /// Takes over the books of that image's heap, and guards its memory.
    fn adopt_heap(&mut self, twin: Twin) -> Result<(), Refusal> {
        if !adopt::books(twin) {
            return Err(no("its parent's stub had none", "check its parent"));
        }
        self.exclude_books();
        if let Err(refusal) = self.watch_adopted() {
            // (It goes on to be served there.)
            START.store(0, SeqCst);
            return Err(refusal);
        }
        for (at, len) in books() {
            place::add(at, len);
        }
        adopt::open_blocks();
        let mut functions = Vec::new();
        adopt::functions(twin, |function| functions.push(function));
        for Adopted {
            at,
            number,
            original,
            jump,
        } in functions
        {
            if bytes(at) != Some(jump) {
                // Its file was unmapped meanwhile.
                entries::remove(at);
            } else if plant(self.world.stopped(), number, at, original)
                && let Some(f) = findings()
            {
                f.functions.fetch_add(1, Relaxed);
            }
        }
        Ok(())
    }

    /// Watches all memory of the arena.
    fn watch_adopted(&mut self) -> Result<(), Refusal> {
        self.check.id = Some(self.staged.reserve().ok_or_else(no_numbers)?);
        let end = arena::arena() + arena::mapped();
        let mut at = arena::arena();
        while at < end {
            let len = (end - at).min(MOST_CHUNK);
            if !self.watch_chunk(at, len) {
                let refused = self.last_refusal.take();
                return Err(refused.unwrap_or_else(|| no("its memory cannot be watched", NO_ROOM)));
            }
            at += len;
        }
        Ok(())
    }
}
