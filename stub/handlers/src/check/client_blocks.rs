//! Blocks and pools of the program's own allocators, as its client requests describe them (`client.rs`). Changed under
//! [`arena::lock`].

use ulpf_lib::ring::findings::{Asked, By, Wrong};

use super::blocks::Block;
use super::client_list::{self as list, BLOCKS, ClientBlock, POOLS};
use super::{arena, shadow};

/// The number of the pool with this handle. `make` creates the pool if it does not exist.
pub fn pool(handle: u64, make: bool) -> Option<u32> {
    match list::find(POOLS, handle, 0) {
        None if make => {
            let n = Some(list::add(POOLS, handle, 0)).filter(|n| *n != 0)?;
            list::change(n, |pool| pool.is_pool = true);
            Some(n)
        }
        found => found,
    }
}

pub fn change_pool(handle: u64, f: impl FnOnce(&mut ClientBlock)) {
    if let Some(n) = pool(handle, false) {
        list::change(n, f);
    }
}

/// True if the pool still exists: another thread may have destroyed it meanwhile.
pub fn is_pool(n: u32) -> bool {
    n == 0 || list::get(n).is_pool
}

/// The redzone on both sides of a block, in bytes, which is poisoned when the block is freed.
fn redzone(node: &ClientBlock) -> u64 {
    match node.pool {
        0 => node.redzone.into(),
        pool => list::get(pool).size,
    }
}

/// Puts a block into the list of its pool.
pub fn link(n: u32, pool: u32) {
    if pool == 0 {
        return;
    }
    let first = list::get(pool).next;
    list::change(n, |node| node.next = first);
    if first != 0 {
        list::change(first, |node| node.before = n);
    }
    list::change(pool, |node| node.next = n);
}

/// Removes the block.
pub fn forget(n: u32) {
    let node = list::get(n);
    if node.pool != 0 {
        match node.before {
            0 => list::change(node.pool, |pool| pool.next = node.next),
            before => list::change(before, |other| other.next = node.next),
        }
        if node.next != 0 {
            list::change(node.next, |other| other.before = node.before);
        }
    }
    list::remove(BLOCKS, n);
}

/// Calls `f` with each block that has a byte in `[start, end)`, or begins there. (Of blocks that begin before, with the
/// last one.)
pub fn each_within(start: u64, end: u64, mut f: impl FnMut(u32, &ClientBlock)) {
    let mut n = match list::before(BLOCKS, start) {
        0 => list::from(BLOCKS, start),
        before => before,
    };
    while n != 0 {
        let (node, next) = (list::get(n), list::after(n));
        if node.start >= end {
            return;
        }
        if node.start >= start || node.start + node.size > start {
            f(n, &node);
        }
        n = next;
    }
}

/// Forgets the blocks in `[start, end)`, whose memory has been replaced.
pub fn forget_all(start: u64, end: u64) {
    if !list::is_empty() {
        let _lock = arena::lock();
        each_within(start, end, |n, node| {
            if node.start >= start {
                forget(n);
            }
        });
    }
}

/// Frees the block, with a redzone of at least `least` bytes on both sides.
pub fn free(n: u32, noted: u32, least: u64) {
    let node = list::get(n);
    let redzone = redzone(&node).max(least);
    list::change(n, |node| {
        node.is_freed = true;
        node.freed = noted;
    });
    let from = node.start.saturating_sub(redzone);
    shadow::poison_bytes(from, node.start + node.size + redzone - from);
}

/// Frees the blocks inside a block whose pool frees them along.
pub fn free_inner(n: u32, noted: u32) {
    const ALONG: u32 = 1;
    let node = list::get(n);
    if node.pool == 0 || list::get(node.pool).flags & ALONG == 0 {
        return;
    }
    let end = node.start + node.size;
    each_within(node.start, end, |n, inner| {
        let inside = inner.start >= node.start && inner.start + inner.size <= end;
        if inside && inner.pool == 0 && !inner.is_freed {
            free(n, noted, 0);
        }
    });
}

/// Moves the block to a new place in the same pool.
pub fn replace(n: u32, start: u64, size: u64) {
    rehouse(n, start, size, list::get(n).pool);
}

/// Moves the block to a new place, and into this pool.
pub fn rehouse(n: u32, start: u64, size: u64, pool: u32) {
    let old = list::get(n);
    forget(n);
    if let Some(other) = list::find(BLOCKS, start, pool) {
        forget(other);
    }
    let new = list::add(BLOCKS, start, pool);
    if new == 0 {
        return;
    }
    list::change(new, |node| {
        node.size = size;
        node.redzone = old.redzone;
        node.allocated = old.allocated;
        node.freed = old.freed;
        node.is_freed = old.is_freed;
        node.inherited = old.inherited;
    });
    link(new, pool);
}

/// Takes the block out of its pool.
pub fn detach(n: u32) {
    let node = list::get(n);
    match list::find(BLOCKS, node.start, 0) {
        Some(_) => forget(n),
        None => rehouse(n, node.start, node.size, 0),
    }
}

// ---- queries -------------------------------------------------------------------------------------

pub fn block(node: &ClientBlock) -> Block {
    Block {
        start: node.start,
        size: node.size,
        by: By::Client,
        asked: Asked::Malloc,
        freed: node.is_freed,
        inherited: node.inherited,
        allocated_at: node.allocated,
        freed_at: node.freed,
    }
}

/// Distance from the block to the byte at `at`, or 0 inside.
fn distance(node: &ClientBlock, at: u64) -> u64 {
    let end = node.start + node.size;
    match at {
        at if at < node.start => node.start - at,
        at if at >= end => at - end + 1,
        _ => 0,
    }
}

/// The block that contains the byte at `at`, or the nearest block, if that is near.
pub fn near(at: u64) -> Option<Block> {
    /// As in memcheck.
    const LEAST: u64 = 16;
    if list::is_empty() {
        return None;
    }
    let _lock = arena::lock();
    let sides = [list::before(BLOCKS, at + 1), list::from(BLOCKS, at + 1)];
    let sides = sides.into_iter().filter(|n| *n != 0).map(list::get);
    let nearest = sides.min_by_key(|node| distance(node, at))?;
    (distance(&nearest, at) <= redzone(&nearest).max(LEAST)).then(|| block(&nearest))
}

/// The error of an access to the poisoned byte at `at`, and its block. `outer` is the block in use that contains the
/// byte, if any.
pub fn judge(at: u64, outer: Option<Block>) -> (Wrong, Option<Block>) {
    match near(at) {
        Some(b) if b.freed && b.has(at) => (Wrong::Freed, Some(b)),
        Some(b) if b.has(at) => (Wrong::Poisoned, Some(b)),
        Some(b) => (Wrong::Outside, Some(b)),
        None => (Wrong::Poisoned, outer),
    }
}

// ---- leak search: by the stub's task with the world stopped -----------------------------------------

/// Calls `f` with every block in use and its mark.
pub fn each(mut f: impl FnMut(Block, u8)) {
    let mut n = if list::is_empty() {
        0
    } else {
        list::after(BLOCKS)
    };
    while n != 0 {
        let node = list::get(n);
        if !node.is_freed {
            f(block(&node), node.mark);
        }
        n = list::after(n);
    }
}

pub fn unmark() {
    let mut n = if list::is_empty() {
        0
    } else {
        list::after(BLOCKS)
    };
    while n != 0 {
        list::change(n, |node| node.mark = 0);
        n = list::after(n);
    }
}

/// True if there is a block in use in `[start, end)`.
pub fn any_within(start: u64, end: u64) -> bool {
    let mut any = false;
    if !list::is_empty() {
        let mut n = list::from(BLOCKS, start);
        while n != 0 && !any {
            let node = list::get(n);
            if node.start >= end {
                break;
            }
            any = !node.is_freed;
            n = list::after(n);
        }
    }
    any
}

/// As [`super::blocks::mark`].
pub fn mark(addr: u64, mark: impl FnOnce(bool) -> u8) -> Option<Block> {
    if list::is_empty() {
        return None;
    }
    let n = list::before(BLOCKS, addr + 1);
    let node = list::get(n);
    let inside = addr.wrapping_sub(node.start);
    if n == 0 || node.is_freed || inside >= node.size.max(1) {
        return None;
    }
    let mark = mark(inside == 0);
    if node.mark >= mark {
        return None;
    }
    list::change(n, |node| node.mark = mark);
    Some(block(&node))
}

/// Marks all present blocks as inherited.
pub fn inherit() {
    let mut n = if list::is_empty() {
        0
    } else {
        list::after(BLOCKS)
    };
    while n != 0 {
        list::change(n, |node| node.inherited = true);
        n = list::after(n);
    }
}
