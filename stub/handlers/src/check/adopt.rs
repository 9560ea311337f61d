//! Takes over a forked child's heap in the stub that the child gets. The heap belonged to the parent's stub, whose
//! image is still mapped in the child. Both images are the same, so each static of ours lies as far from its twin as
//! the images are apart.

use core::sync::atomic::Ordering::*;

use super::entries::JUMP;
use super::twin::Twin;
use super::{
    arena, block_map, blocks, client_blocks, client_list, depot, entries, family, heap, judge,
    out_of_block, requests, serve, shadow,
};
use crate::check::LEAKS;
use crate::check::findings::{count, findings};
use crate::global::tables;
use ulpf_lib::{PAGE_SIZE, place};
use ulpf_stub_tables::edit::Detour;
use ulpf_stub_tables::edits::Edits;
use ulpf_stub_tables::patches::Known;

/// Takes over the books of the parent's stub. Returns `false` if the parent had no checked heap. Called by the stub's
/// task with the world stopped.
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

/// Calls `f` for each function that is served here: its number, and its edit in the parent's table.
pub fn functions(twin: Twin, mut f: impl FnMut(usize, &Detour<JUMP>)) {
    // SAFETY: the table of the other image, which nothing changes any more. It refers to memory that the child has, too.
    let theirs: &Edits = unsafe { &*twin.of(&tables().edits) };
    for edit in theirs.functions.iter() {
        let Some(ours) = entries::known(edit.number) else {
            continue;
        };
        // SAFETY: the same record of the other image.
        let there: Known = unsafe { twin.of(ours).read() };
        let on = Some(there.after).filter(|to| twin.ours(*to) != entries::way_back());
        let Some(function) = entries::function(&there) else {
            continue;
        };
        let Some(number) = entries::add(there.pc, function, on) else {
            continue;
        };
        if let Some(own) = entries::own(edit.number) {
            // SAFETY: as above.
            let own: Known = unsafe { twin.of(own).read() };
            entries::pass(there.pc, own.back);
            let page = own.back & !(PAGE_SIZE - 1);
            if page != 0 && !place::has(page) {
                place::add(page, PAGE_SIZE);
            }
        }
        f(number, edit);
    }
}
