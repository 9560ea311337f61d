//! Blocks that the program had before its heap was checked: they are found (`glibc.rs`), and watched as new ones are
//! (`check/old.rs` of the handlers).

use core::ops::Range;
use core::sync::atomic::Ordering::*;

use alloc::vec::Vec;

use ulpf_lib::guard::maps::Snapshot;
use ulpf_lib::ring::findings::Old;
use ulpf_lib::{PAGE_SIZE, TargetAddr, place};
use ulpf_stub_handlers::check::entries::{self, Function, JUMP};
use ulpf_stub_handlers::check::findings::findings;
use ulpf_stub_handlers::check::old::{self, FREED, IN_USE, OldBlock};
use ulpf_stub_handlers::check::regions::{self, MOST_REGIONS};
use ulpf_stub_handlers::global::{g, tables};
use ulpf_stub_handlers::unwind;
use ulpf_stub_tables::edit::Detour;

use super::check::{memory, watched_alias};
use super::functions::Object;
use super::glibc::{self, Walked};
use super::{Control, parked, pause, reader, text};

/// The allocator's code surrounds its functions: most of the functions that they call are before them.
const BEFORE: u64 = 16 << 10;
const BEHIND: u64 = 4 << 10;
/// Number of times that threads get the time to leave it.
const TRIES: usize = 100;

impl Control {
    /// Searches for blocks from before, if the program has run before and nothing is known of its blocks.
    pub fn look_for_old_blocks(&mut self) {
        let Some(f) = findings().filter(|_| entries::PASSES.load(Relaxed)) else {
            return;
        };
        if matches!(
            Old::of(f.old.load(SeqCst)),
            Old::None | Old::Unknown | Old::Busy
        ) {
            let mut known = self.find_old_blocks();
            for _ in 0..TRIES {
                if known != Err(Old::Busy) || !self.goes_on_a_moment() {
                    break;
                }
                known = self.find_old_blocks();
            }
            let known = known.map_or_else(|why| why, |()| Old::Walked);
            f.old.store(known as u64, SeqCst);
        }
    }

    /// Lets threads leave the allocator, which they no longer enter for a new block. `false`: the program has died.
    pub(super) fn goes_on_a_moment(&mut self) -> bool {
        self.world.stopped().guards().resumed();
        self.running = true;
        self.let_world_go();
        pause::sleep();
        while (self.serve() || self.holder.is_some()) && !reader::program_is_dead() {
            pause::sleep();
        }
        self.running = false;
        self.world.stop(None)
    }

    fn find_old_blocks(&mut self) -> Result<(), Old> {
        let maps = Snapshot::read().map_err(|_| Old::Unknown)?;
        let (allocator, free, file) = allocator(&maps).ok_or(Old::Unknown)?;
        let stopped = self.world.stopped();
        let busy = g().threads.iter().any(|t| {
            let Some(c) = parked::frame(t, stopped) else {
                return parked::is_unsettled(t);
            };
            let is_there = |at: u64| allocator.contains(&at) || entries::is_in_copy(at);
            unwind::comes_from(&c.gprs, text::word, is_there)
        });
        if busy {
            return Err(Old::Busy);
        }
        let walked = glibc::walk(&glibc::data_of(file, &maps))?;
        self.watch_old_blocks(&walked, &allocator, free)
    }

    fn watch_old_blocks(
        &mut self,
        walked: &Walked,
        allocator: &Range<u64>,
        free: u64,
    ) -> Result<(), Old> {
        let len = (walked.blocks.len() * size_of::<OldBlock>()) as u64;
        let at =
            memory(len.next_multiple_of(PAGE_SIZE).max(PAGE_SIZE)).map_err(|_| Old::Unwatched)?;
        self.world.stopped().guards().exclude(TargetAddr(at), len);
        let mut watched = Vec::new();
        for region in &walked.regions {
            watched.extend(self.watch_region(*region).ok_or(Old::Unwatched)?);
        }
        if watched.len() > MOST_REGIONS {
            return Err(Old::Unwatched);
        }
        for waits in old::waiting() {
            let known = walked
                .blocks
                .binary_search_by_key(&waits.start, |b| b.start);
            if let Some(block) = known.ok().and_then(|n| walked.blocks.get(n)) {
                block.state.store(FREED, Relaxed);
                block.freed.store(waits.freed.load(Relaxed), Relaxed);
            }
        }
        let (before, bytes) = old::place();
        // SAFETY: memory for that many.
        unsafe {
            core::ptr::copy_nonoverlapping(
                walked.blocks.as_ptr(),
                at as *mut OldBlock,
                walked.blocks.len(),
            );
        }
        old::begin(
            (at, walked.blocks.len() as u64),
            (allocator.start, allocator.end),
            free,
        );
        if before != 0 {
            place::unmap(before, bytes);
        }
        for (start, end, distance) in &watched {
            regions::add_region((*start, *end), *distance, false);
        }
        old::close_all();
        for (start, end, _) in watched {
            let stopped = self.world.stopped();
            self.edits
                .accesses
                .classes
                .classify_checked(stopped, start, end);
        }
        if let Some(f) = findings()
            && let [blocks, bytes] = &f.old_blocks
        {
            let used = walked.blocks.iter().filter(|b| b.is(IN_USE));
            blocks.store(used.clone().count() as u64, Relaxed);
            bytes.store(used.map(|b| b.size).sum(), Relaxed);
        }
        Ok(())
    }

    /// Watches all of this memory. Returns its parts, and the distances of their aliases. `None`: it cannot be watched.
    fn watch_region(&mut self, (start, end): (u64, u64)) -> Option<Vec<(u64, u64, u64)>> {
        self.watch_checked(start, end - start)?;
        let parts = parts_of((start, end));
        let watched: u64 = parts.iter().map(|p| p.1 - p.0).sum();
        (watched == end - start).then_some(parts)
    }
}

/// Parts of watched memory, and the distances of their aliases. Memory that is not watched is in no part.
pub(super) fn parts_of((start, end): (u64, u64)) -> Vec<(u64, u64, u64)> {
    let mut parts: Vec<(u64, u64, u64)> = Vec::new();
    for page in (start..end).step_by(PAGE_SIZE as usize) {
        let Some(alias) = watched_alias(page) else {
            continue;
        };
        let distance = alias.0.wrapping_sub(page);
        match parts.last_mut() {
            Some(last) if last.2 == distance && last.1 == page => last.1 = page + PAGE_SIZE,
            _ => parts.push((page, page + PAGE_SIZE, distance)),
        }
    }
    parts
}

/// The code of the C library's allocator, if that is the program's only one, where its free begins now, and the file.
fn allocator(maps: &Snapshot) -> Option<(Range<u64>, u64, (u64, u64))> {
    let served = || tables().edits.functions.iter();
    let does = |f: &Detour<JUMP>| entries::known(f.number).and_then(entries::function);
    let frees = served().filter(|f| does(f) == Some(Function::Free));
    let frees: Vec<&Detour<JUMP>> = frees.collect();
    let object = |at: u64| Object::at(maps.index(at), maps);
    let own = object(frees.first()?.at)?;
    let same = |at: &u64| (own.start..own.end).contains(at);
    if !frees.iter().all(|f| same(&f.at)) {
        return None;
    }
    let mut all = served().filter(|f| same(&f.at) && does(f).is_some_and(|f| !f.goes_on()));
    let first = all.next()?.at;
    let last = all.next_back().map_or(first, |f| f.at);
    let free = entries::known(frees.first()?.number).and_then(entries::passed)?;
    let code = first.saturating_sub(BEFORE)..last + BEHIND;
    Some((code, free.back, (own.start, own.end)))
}
