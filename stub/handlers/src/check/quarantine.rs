//! Freed blocks that are not used again before so many bytes have been freed after them.
//!
//! ```text
//! free ─▶ chain of the block's shelf ── some kilobytes ──▶ the quarantine, a chain of all ── too long ──▶ shelves
//! ```
//! So its end is no place where threads meet at each call.

use core::sync::atomic::{AtomicU64, Ordering::*};

use ulpf_lib::ring::found::SHELVES;

use super::arena::{Lock, arena};
use super::blocks::{expect, get, link, offset, owner};
use super::chain::{Chain, Loose, takes};
use super::found::findings;
use super::shadow;
use super::shelf::{self, Taken};
use super::twin::Twin;

/// At most so many bytes are in the chain of a shelf.
const MOST_FREED: u64 = 64 << 10;

/// So many bytes freed blocks take that wait, at least: with their gaps and what is known of them ([`takes`]).
static QUARANTINE: AtomicU64 = AtomicU64::new(64 << 20);
/// Nobody who has it takes another one.
static LOCK: Lock = Lock::open();
/// All that wait, under the lock.
static WAITING: Chain = Chain::empty();

pub fn begin(bytes: u64) {
    QUARANTINE.store(bytes, Relaxed);
}

/// A forked child: what its parent's stub knew is known here, too.
pub fn adopt(twin: Twin) {
    twin.take(&QUARANTINE);
    twin.take(&WAITING);
}

/// A slot of that shelf, of so many bytes, has been freed.
pub fn add(shelf: Taken, slot: u64, bytes: u64) {
    let quarantine = QUARANTINE.load(Relaxed);
    let enough = (quarantine / 1024).min(MOST_FREED);
    let freed = shelf.freed();
    freed.append(&Loose {
        first: link(slot),
        last: link(slot),
        bytes: takes(bytes),
    });
    if freed.bytes() < enough {
        return;
    }
    let chain = freed.take_all();
    drop(shelf);
    let ended = {
        let _lock = LOCK.lock();
        WAITING.append(&chain);
        // (Another shelf's may have been freed before, and come later.)
        let ended = WAITING.take_until(quarantine + enough * (SHELVES as u64 - 1));
        if let Some(f) = findings() {
            f.kept.store(WAITING.bytes(), Relaxed);
        }
        ended
    };
    if let Some(ended) = ended {
        release(&ended);
    }
}

/// There is no memory for so many bytes: half of what waits is used again, and from now on no more is kept. `false`: that would
/// not help.
pub fn shorten(need: u64) -> bool {
    const LEAST: u64 = 64 << 10;
    let ended = {
        let _lock = LOCK.lock();
        let waiting = WAITING.bytes();
        if waiting < need.max(LEAST) {
            return false;
        }
        QUARANTINE.fetch_min(waiting / 2, Relaxed);
        WAITING.take_until(waiting / 2)
    };
    if let Some(ended) = &ended {
        release(ended);
    }
    ended.is_some()
}

/// These may be used again.
fn release(chain: &Loose) {
    let mut shelf: Option<Taken> = None;
    let mut at = chain.first;
    while at != 0 {
        let slot = offset(at);
        at = match at == chain.last {
            true => 0,
            false => get(slot).next,
        };
        if at != 0 {
            expect(offset(at));
        }
        // Its bits change when it is allocated, most likely soon.
        shadow::expect(arena() + slot);
        let number = owner(slot);
        // (No two are held at a time.)
        let same = shelf.take().filter(|taken| taken.number() == number);
        let taken = same.unwrap_or_else(|| shelf::take(number));
        taken.take_back(slot);
        shelf = Some(taken);
    }
}
