//! Takes over the heap of another stub, whose image is still mapped: the parent's, in the stub that a forked child
//! gets; or an earlier one's, that has been detached. Both images are the same, so each static of ours lies as far from
//! its twin as the images are apart.

use core::sync::atomic::Ordering::*;

use super::entries::JUMP;
use super::twin::Twin;
use super::{
    arena, block_map, blocks, client_blocks, client_list, depot, entries, family, heap, judge,
    left, old, out_of_block, requests, serve, shadow,
};
use crate::check::LEAKS;
use crate::check::findings::{count, findings};
use ulpf_lib::{PAGE_SIZE, place};
use ulpf_stub_tables::patches::Known;

/// True if that image still serves a program that its stub has left.
pub fn is_left(twin: Twin) -> bool {
    entries::are_asleep(twin) && !twin.is_set(&left::LEFT)
}

/// Takes over the other stub's books. Returns `false` if it had no checked heap. Called by the stub's task with the
/// world stopped, when no thread is in the other image.
pub fn books(twin: Twin) -> bool {
    twin.take(&arena::START);
    twin.take(&arena::RECORDS_AT);
    twin.take(&arena::GRANULES_AT);
    twin.take(&arena::MAPPED);
    twin.take(&arena::CARVED);
    heap::adopt(twin);
    requests::adopt(twin);
    client_list::adopt(twin);
    depot::adopt(twin);
    twin.take(&family::NEWS);
    twin.take(&judge::COPIERS);
    twin.take(&serve::FRAMES);
    twin.take(&LEAKS);
    twin.take(&out_of_block::GUESSES);
    twin.take(&block_map::OWNERS_AT);
    twin.take(&block_map::LINES_AT);
    twin.take(&entries::PASSES);
    twin.take(&entries::OTHERS);
    old::adopt(twin);
    arena::arena() != 0
}

/// Makes the program's blocks addressable. All of the arena is poisoned so far.
pub fn open_blocks() {
    let f = findings();
    blocks::each(|block, _| {
        shadow::unpoison(block.start, block.size);
        let shard = blocks::owner(block.start - arena::arena());
        if let Some(counts) = f.and_then(|f| f.counts.get(shard)) {
            count(&counts.bytes, block.size as i64);
        }
    });
    blocks::inherit();
    client_blocks::inherit();
    if let Some(f) = f {
        f.most.store(f.bytes(), Relaxed);
    }
}

/// Addresses of the functions that the other stub serves, each with the jump that it begins with.
pub fn places(twin: Twin) -> impl Iterator<Item = (u64, [u8; entries::JUMP])> {
    let all = (0..entries::MOST).filter_map(|n| Some((n, entries::known(n)?)));
    // SAFETY: the same table of the other image, which nothing changes any more.
    let there = all.map(move |(n, ours)| (unsafe { twin.of(ours).read() }.pc, n));
    there
        .filter(|(pc, _)| *pc != 0)
        .map(move |(pc, n)| (pc, entries::jump_there(n, twin)))
}

/// True if `at` is in the copy of a function's first instructions that the other stub has made.
pub fn is_in_copy(at: u64, twin: Twin) -> bool {
    let all = (0..entries::MOST).filter_map(entries::own);
    // SAFETY: as above.
    let there = all.map(|ours| unsafe { twin.of(ours).read() }.back);
    let mut there = there.filter(|back| *back != 0);
    there.any(|back| at.wrapping_sub(back) < entries::COPY)
}

/// A function that the other stub serves.
pub struct Adopted {
    pub at: u64,
    /// Its number here.
    pub number: usize,
    pub original: [u8; JUMP],
    /// The jump that it begins with.
    pub jump: [u8; JUMP],
}

/// Calls `f` for each function that the other stub serves; from now on it is served here. (The other stub's table of
/// edits is gone after a detach. Its image is not.)
pub fn functions(twin: Twin, mut f: impl FnMut(Adopted)) {
    for n in 0..entries::MOST {
        let (Some(ours), Some(own)) = (entries::known(n), entries::own(n)) else {
            break;
        };
        let (Some(original), Some(moved)) = (entries::original(n), entries::moved(n)) else {
            break;
        };
        // SAFETY: the same tables of the other image, which nothing changes any more.
        let (there, own, original, moved): (Known, Known, [u8; JUMP], [u8; JUMP]) = unsafe {
            (
                twin.of(ours).read(),
                twin.of(own).read(),
                twin.of(original).read(),
                twin.of(moved).read(),
            )
        };
        let on = Some(there.after).filter(|to| twin.ours(*to) != entries::way_back());
        // (Copy functions have thunks in the image, and are looked for anew.)
        let function = entries::function(&there).filter(|f| f.copies().is_none());
        let Some(function) = function.filter(|_| there.pc != 0) else {
            continue;
        };
        let Some(number) = entries::add(there.pc, function, on) else {
            continue;
        };
        entries::pass(there.pc, own.back);
        if own.back != 0 {
            entries::copy_pages(own.back)
                .filter(|page| !place::has(*page))
                .for_each(|page| place::add(page, PAGE_SIZE));
        }
        entries::keep_moved(number, moved);
        f(Adopted {
            at: there.pc,
            number,
            original,
            jump: entries::jump_there(n, twin),
        });
    }
}
