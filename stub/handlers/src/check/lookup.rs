//! Blocks of the arena, and blocks from before the heap was checked.

use super::blocks::{self, Block};
use super::regions::has;
use super::{arena, old, regions};

/// The block that contains the byte at `addr`, or a near one.
pub fn near(addr: u64) -> Option<Block> {
    match arena::has(addr) {
        true => blocks::near(addr),
        false if regions::is_requested(addr) => None,
        false => old::near(addr),
    }
}

/// The block that begins at `addr`.
pub fn at(addr: u64) -> Option<Block> {
    match arena::has(addr) {
        true => blocks::at(addr),
        false => old::at(addr).filter(|_| has(addr)),
    }
}

/// The next block behind the byte at `addr`.
pub fn next(addr: u64) -> Option<Block> {
    match arena::has(addr) {
        true => blocks::next(addr),
        false if regions::is_requested(addr) => None,
        false => old::next(addr),
    }
}
