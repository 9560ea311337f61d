//! Serves Valgrind's client requests: blocks of the program's own allocators, and memory that is poisoned. Each request
//! means what memcheck defines.

use core::sync::atomic::{AtomicU64, Ordering::*};

use ulpf_engine::cpu::Gprs;
use ulpf_lib::addr::USER_END;
use ulpf_lib::ring::MAX_FRAMES;
use ulpf_lib::ring::findings::Wrong;
use ulpf_lib::{AccessKind, TargetAddr};
use ulpf_stub_tables::patches::Known;

use super::blocks::Block;
use super::client_blocks::*;
use super::client_list::{self as list, BLOCKS, POOLS};
use super::findings::findings;
use super::{
    arena, blocks, depot, entries, judge, lookup, regions, report, requests, serve, shadow, shard,
};
use crate::cause::Cause;
use crate::runtime::memory;
use crate::runtime::thread::Current;
use crate::unwind;

/// Numbers of the requests, as Valgrind defines them, and our own.
mod numbers {
    pub const COUNT_ERRORS: u64 = 0x1201;
    pub const MALLOCLIKE: u64 = 0x1301;
    pub const FREELIKE: u64 = 0x1302;
    pub const CREATE_POOL: u64 = 0x1303;
    pub const DESTROY_POOL: u64 = 0x1304;
    pub const POOL_ALLOC: u64 = 0x1305;
    pub const POOL_FREE: u64 = 0x1306;
    pub const POOL_TRIM: u64 = 0x1307;
    pub const MOVE_POOL: u64 = 0x1308;
    pub const POOL_CHANGE: u64 = 0x1309;
    pub const POOL_EXISTS: u64 = 0x130a;
    pub const RESIZE: u64 = 0x130b;
    pub const QUIET: u64 = 0x1801;
    const MEMCHECK: u64 = (b'M' as u64) << 24 | (b'C' as u64) << 16;
    pub const NO_ACCESS: u64 = MEMCHECK;
    pub const UNDEFINED: u64 = MEMCHECK + 1;
    pub const DEFINED: u64 = MEMCHECK + 2;
    pub const IS_ADDRESSABLE: u64 = MEMCHECK + 4;
    pub const IS_DEFINED: u64 = MEMCHECK + 5;
    pub const FIND_LEAKS: u64 = MEMCHECK + 6;
    pub const COUNT_LEAKS: u64 = MEMCHECK + 7;
    pub const COUNT_LEAK_BLOCKS: u64 = MEMCHECK + 12;
    const OURS: u64 = (b'U' as u64) << 24 | (b'L' as u64) << 16;
    /// (address, bytes): returns the first poisoned byte, or 0.
    pub const POISONED: u64 = OURS;
}

/// The result of a request.
pub enum Outcome {
    /// The request returns this value.
    Returns(u64),
    /// Accesses to this memory must be watched first; nothing has been done.
    NeedsWatch(u64, u64),
    /// A leak search must run first; nothing has been done.
    NeedsCount,
}

/// Results of the last leak search that the program has asked for. For each kind (lost, lost with these, perhaps lost,
/// reachable): blocks, and their bytes.
pub static LEFT: [[AtomicU64; 2]; 4] = [const { [const { AtomicU64::new(0) }; 2] }; 4];

/// The counts as memcheck returns them: lost, perhaps lost, reachable, and suppressed, of which we have none.
fn left(what: usize) -> [u64; 4] {
    let count = |of: &[AtomicU64; 2]| of.get(what).map_or(0, |n| n.load(Relaxed));
    let [lost, with, perhaps, reachable] = &LEFT;
    [
        count(lost) + count(with),
        count(perhaps),
        count(reachable),
        0,
    ]
}

/// The thread that makes the request.
struct Caller<'a> {
    t: Current,
    gprs: &'a Gprs,
    /// Address behind the request.
    after: u64,
}

/// Serves the request that these registers make. `asked`: memory that can be watched is watched already.
pub fn serve(t: Current, gprs: &Gprs, known: &Known, asked: bool) -> Outcome {
    use Outcome::Returns;
    let default = gprs.rdx;
    let Some([request, a, b, c, d, _]) = memory::get::<[u64; 6]>(gprs.rax) else {
        return Returns(default);
    };
    // (Words that a request does not use may hold anything.)
    let words = match request {
        numbers::MALLOCLIKE..=numbers::RESIZE => 4,
        numbers::COUNT_LEAKS | numbers::COUNT_LEAK_BLOCKS => 4,
        numbers::NO_ACCESS..=numbers::IS_DEFINED | numbers::POISONED => 2,
        _ => 0,
    };
    if [a, b, c, d].iter().take(words).any(|n| *n >= USER_END) {
        return Returns(default);
    }
    if let (false, Some((at, len))) = (asked, closes(request, [a, b, c, d]))
        && let Some((from, to)) = regions::unknown(at, at.saturating_add(len))
    {
        return Outcome::NeedsWatch(from, to);
    }
    if request == numbers::FIND_LEAKS && !asked {
        return Outcome::NeedsCount;
    }
    let caller = Caller {
        t,
        gprs,
        after: known.after,
    };
    match request {
        numbers::NO_ACCESS => poison(a, b),
        numbers::UNDEFINED | numbers::DEFINED => unpoison(a, b),
        numbers::IS_ADDRESSABLE | numbers::IS_DEFINED => return Returns(caller.check(a, b)),
        numbers::POISONED => return Returns(first_poisoned(a, b).unwrap_or(0)),
        numbers::MALLOCLIKE => caller.allocated(0, a, b, c),
        numbers::FREELIKE => caller.freed(0, a, b),
        numbers::RESIZE => caller.resized(a, b, c, d),
        numbers::CREATE_POOL => {
            let _lock = arena::lock();
            pool(a, true);
            change_pool(a, |pool| (pool.size, pool.flags) = (b, d as u32));
        }
        numbers::DESTROY_POOL => caller.destroyed(a),
        numbers::POOL_ALLOC => {
            if let Some(pool) = caller.pool(a) {
                caller.allocated(pool, b, c, 0);
            }
        }
        numbers::POOL_FREE => {
            if let Some(pool) = caller.pool(a) {
                caller.freed(pool, b, 0);
            }
        }
        numbers::POOL_TRIM => {
            if let Some(pool) = caller.pool(a) {
                caller.trimmed(pool, b, c);
            }
        }
        numbers::MOVE_POOL => caller.moved(a, b),
        numbers::POOL_CHANGE => {
            if let Some(pool) = caller.pool(a) {
                caller.changed(pool, b, c, d);
            }
        }
        numbers::POOL_EXISTS => {
            let _lock = arena::lock();
            return Returns(pool(a, false).is_some().into());
        }
        numbers::COUNT_LEAKS | numbers::COUNT_LEAK_BLOCKS => {
            let what = usize::from(request == numbers::COUNT_LEAKS);
            for (to, count) in [a, b, c, d].into_iter().zip(left(what)) {
                memory::put(to, &count);
            }
        }
        numbers::COUNT_ERRORS => {
            return Returns(findings().map_or(0, |f| f.errors.load(Relaxed)));
        }
        numbers::QUIET => {
            let quiet = &t.own().quiet;
            quiet.set(quiet.get().wrapping_add(a as u32));
        }
        _ => return Returns(default),
    }
    match request {
        numbers::NO_ACCESS | numbers::UNDEFINED | numbers::DEFINED => Returns(u64::MAX),
        _ => Returns(default),
    }
}

/// The memory that a request poisons: address and bytes, as far as they are known beforehand.
fn closes(request: u64, [a, b, c, d]: [u64; 4]) -> Option<(u64, u64)> {
    match request {
        numbers::NO_ACCESS => Some((a, b)),
        // (Freed memory was allocated before, and a pool's blocks are those that it will free.)
        numbers::MALLOCLIKE => Some((a.saturating_sub(c), b.saturating_add(2 * c.min(1 << 20)))),
        numbers::POOL_ALLOC => Some((b, c)),
        numbers::RESIZE => Some((a, b.max(c).saturating_add(d.min(1 << 20)))),
        _ => None,
    }
    .filter(|(_, len)| *len > 0)
}

/// Poisons these bytes.
fn poison(at: u64, len: u64) {
    shadow::poison_bytes(at, len);
}

/// Makes bytes addressable; in the heap, only those of a block in use.
fn unpoison(at: u64, len: u64) {
    let end = at.saturating_add(len);
    if !arena::has(at) {
        return shadow::unpoison_bytes(at, len);
    }
    // (The lock keeps the block from being freed meanwhile.)
    let Some((_taken, slot, _)) = shard::take_of(at) else {
        return;
    };
    if let Some(block) = blocks::block(slot).filter(|b| !b.freed) {
        let (from, to) = (at.max(block.start), end.min(block.start + block.size));
        shadow::unpoison_bytes(from, to.saturating_sub(from));
    }
}

/// The first poisoned byte of these.
fn first_poisoned(at: u64, len: u64) -> Option<u64> {
    let from = shadow::checked_from(at, at.saturating_add(len));
    shadow::first_poisoned(from, len.saturating_sub(from - at))
}

impl Caller<'_> {
    /// The registers of the program's own code, if it has called a function of ours that makes the request.
    fn gprs(&self) -> Gprs {
        let mut gprs = *self.gprs;
        let functions = requests::FUNCTIONS.load(Relaxed);
        if functions != 0 && gprs.rip.wrapping_sub(functions) < 4096 {
            const BELOW: u64 = 56;
            gprs.rip = memory::get(gprs.rsp + BELOW).unwrap_or(gprs.rip);
            gprs.rsp += BELOW + 8;
        }
        gprs
    }

    /// The number of its call stack in the depot, with the request itself as the first frame.
    fn note(&self) -> u32 {
        let mut frames = [0; MAX_FRAMES];
        let want = (serve::FRAMES.load(Relaxed) as usize).clamp(1, MAX_FRAMES);
        let (first, rest) = frames.split_at_mut(1);
        if let Some(first) = first.first_mut() {
            *first = self.after;
        }
        let mut callers = [0; MAX_FRAMES];
        let n = unwind::backtrace(self.t, &self.gprs(), &mut callers, want - 1);
        let n = if want == 1 { 0 } else { n.min(want - 1) };
        rest.iter_mut()
            .zip(callers)
            .take(n)
            .for_each(|(to, from)| *to = from);
        depot::note(self.t.tid() as u32, frames.get(..n + 1).unwrap_or_default())
    }

    fn report(&self, wrong: Wrong, addr: u64, block: Option<Block>) {
        // (Requests made before we came are not known.)
        if entries::PASSES.load(Relaxed) {
            return;
        }
        let event = report::client_request(self.t, &self.gprs(), wrong, addr, block);
        event.into_iter().for_each(|e| self.t.own().report(e));
    }

    fn pool(&self, handle: u64) -> Option<u32> {
        let found = {
            let _lock = arena::lock();
            pool(handle, entries::PASSES.load(Relaxed))
        };
        if found.is_none() {
            self.report(Wrong::NoBlock, handle, None);
        }
        found
    }

    /// Reports the first poisoned byte, and returns it; 0 if all bytes are addressable.
    fn check(&self, at: u64, len: u64) -> u64 {
        let Some(closed) = first_poisoned(at, len) else {
            return 0;
        };
        let gprs = self.gprs();
        let cause = Cause::before_access(gprs.rip, TargetAddr(at), len, AccessKind::Read);
        let (wrong, block) = judge::nearest(closed);
        let event = report::access(self.t, &gprs, &cause, wrong, closed, block);
        event.into_iter().for_each(|e| self.t.own().report(e));
        closed
    }

    fn allocated(&self, pool: u32, at: u64, size: u64, redzone: u64) {
        if at == 0 {
            return;
        }
        let noted = self.note();
        let _lock = arena::lock();
        if !is_pool(pool) {
            return;
        }
        each_within(at, at.saturating_add(size), |n, node| {
            if node.is_freed || node.start == at && node.pool == pool {
                forget(n);
            }
        });
        let n = list::add(BLOCKS, at, pool);
        if n == 0 {
            return;
        }
        list::change(n, |node| {
            node.size = size;
            node.redzone = redzone.min(u32::MAX.into()) as u32;
            node.allocated = noted;
        });
        link(n, pool);
        shadow::unpoison_bytes(at, size);
        shadow::poison_bytes(at.saturating_sub(redzone), redzone);
        shadow::poison_bytes(at + size, redzone);
    }

    fn freed(&self, pool: u32, at: u64, redzone: u64) {
        let noted = self.note();
        let found = {
            let _lock = arena::lock();
            let found = list::find(BLOCKS, at, pool);
            let block = found.map(|n| block(&list::get(n)));
            if let Some(n) = found.filter(|_| block.is_some_and(|b| !b.freed)) {
                free(n, noted, redzone);
                free_inner(n, noted);
            }
            block
        };
        match found {
            Some(block) if !block.freed => {}
            Some(block) => self.report(Wrong::Twice, at, Some(block)),
            None => {
                // (A function of another kind has allocated it.)
                let other = lookup::at(at).filter(|b| !b.freed);
                match other {
                    Some(_) => self.report(Wrong::Mismatch, at, other),
                    None => self.report(Wrong::NoBlock, at, near(at).or_else(|| lookup::near(at))),
                }
            }
        }
    }

    fn resized(&self, at: u64, old: u64, new: u64, redzone: u64) {
        let _lock = arena::lock();
        let Some(n) = list::find(BLOCKS, at, 0).filter(|n| !list::get(*n).is_freed) else {
            drop(_lock);
            return self.report(Wrong::NoBlock, at, near(at));
        };
        list::change(n, |node| node.size = new);
        if new < old {
            shadow::poison_bytes(at + new, (old - new).saturating_add(redzone));
        } else {
            shadow::unpoison_bytes(at + old, new - old);
            shadow::poison_bytes(at + new, redzone);
        }
    }

    fn destroyed(&self, handle: u64) {
        let noted = self.note();
        let Some(pool) = self.pool(handle) else {
            return;
        };
        let _lock = arena::lock();
        if !is_pool(pool) {
            return;
        }
        // (The blocks outlive the pool, since the program may still use them.)
        loop {
            let n = list::get(pool).next;
            if n == 0 {
                break;
            }
            let node = list::get(n);
            if !node.is_freed {
                free(n, noted, 0);
            }
            detach(n);
        }
        list::remove(POOLS, pool);
    }

    /// Keeps only blocks within `[at, at + len)`.
    fn trimmed(&self, pool: u32, at: u64, len: u64) {
        let noted = self.note();
        let end = at.saturating_add(len);
        let _lock = arena::lock();
        let mut n = if is_pool(pool) {
            list::get(pool).next
        } else {
            0
        };
        while n != 0 {
            let node = list::get(n);
            let stop = node.start + node.size;
            if node.is_freed || node.start >= at && stop <= end {
                n = node.next;
                continue;
            }
            if stop <= at || node.start >= end {
                free(n, noted, 0);
            } else {
                let (from, to) = (node.start.max(at), stop.min(end));
                shadow::poison_bytes(node.start, from - node.start);
                shadow::poison_bytes(to, stop - to);
                replace(n, from, to - from);
            }
            n = node.next;
        }
    }

    fn moved(&self, from: u64, to: u64) {
        let Some(pool) = self.pool(from) else { return };
        let _lock = arena::lock();
        let new = super::client_blocks::pool(to, true);
        let Some(new) = new.filter(|new| is_pool(pool) && *new != pool) else {
            return;
        };
        let old = list::get(pool);
        list::change(new, |node| (node.size, node.flags) = (old.size, old.flags));
        loop {
            let n = list::get(pool).next;
            if n == 0 {
                break;
            }
            let node = list::get(n);
            rehouse(n, node.start, node.size, new);
        }
        list::remove(POOLS, pool);
    }

    fn changed(&self, pool: u32, from: u64, to: u64, size: u64) {
        let _lock = arena::lock();
        let found = list::find(BLOCKS, from, pool).filter(|n| !list::get(*n).is_freed);
        match found {
            Some(n) => replace(n, to, size),
            None => {
                drop(_lock);
                self.report(Wrong::NoBlock, from, near(from));
            }
        }
    }
}
