//! A checked heap in the test's own memory. It does the stub's task's part: at the start of the heap, and when it
//! grows.
//!
//! ```text
//!     arena    | memory of a file ........ | address space only |       the program's addresses
//!     alias    | the same memory           |                            how the heap reaches it
//!     bits     | one for each byte of it   |                            closed where the arena has grown
//! ```
//! The heap is made of statics, so there is one fixture at a time. Dropping it resets all of them.

use std::sync::atomic::Ordering::*;
use std::sync::{Mutex, MutexGuard};

use linux_raw_sys::general as k;
use ulpf_lib::command::Redzone;
use ulpf_lib::ring::findings::{Asked, By, FINDINGS_OFFSET, Findings};
use ulpf_lib::sys;

use super::super::arena::{self, ARENA, GRANULE, GRANULES};
use super::super::blocks::{self, RECORDS};
use super::super::granules::ArenaFull;
use super::super::heap::{self, Origin, Places};
use super::super::{
    block_map, client_list, depot, findings, large, old, quarantine, regions, shadow, shard,
};
use crate::global::{g, tables_mut};

/// Zeroed memory that is unmapped when this is dropped.
pub struct Map {
    pub at: u64,
    len: u64,
}

impl Map {
    pub fn new(len: u64) -> Map {
        Map::of(len, k::PROT_READ | k::PROT_WRITE)
    }

    fn of(len: u64, prot: u32) -> Map {
        let flags = k::MAP_PRIVATE | k::MAP_ANONYMOUS | k::MAP_NORESERVE;
        // SAFETY: new memory.
        let at = unsafe { sys!(k::__NR_mmap, 0, len, prot, flags, -1i64, 0) };
        let at = at.expect("address space for a test");
        Map { at, len }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the fixture's own memory, which nothing refers to any more.
        let _ = unsafe { sys!(k::__NR_munmap, self.at, self.len) };
    }
}

static ONE: Mutex<()> = Mutex::new(());

/// Owns all statics of the heap for the test, in the state that they have at the start of a program.
pub struct Statics(#[allow(dead_code)] MutexGuard<'static, ()>);

impl Statics {
    pub fn take() -> Statics {
        let one = ONE.lock().unwrap_or_else(|failed| failed.into_inner());
        reset();
        Statics(one)
    }

    /// Sets the table of bits: the address that address 0 has in it, in wrapping arithmetic.
    pub fn use_bits(&self, table: u64) {
        set_bits(table);
    }
}

impl Drop for Statics {
    fn drop(&mut self) {
        reset();
    }
}

fn set_bits(table: u64) {
    // SAFETY: only the owner of `Statics` uses the tables.
    unsafe { tables_mut() }.patches.tables.writes = table;
}

fn reset() {
    set_bits(0);
    g().shared.store(core::ptr::null_mut(), Relaxed);
    shadow::forget();
    arena::reset();
    blocks::reset();
    depot::reset();
    large::reset();
    block_map::reset();
    old::reset();
    quarantine::reset();
    regions::reset();
    shard::reset();
    client_list::reset();
}

/// An origin for a block that thread `thread` asks for.
pub fn origin(thread: u32, by: By, noted: u32) -> Origin {
    let asked = Asked::Malloc;
    Origin {
        thread,
        by,
        asked,
        noted,
    }
}

/// A heap that can grow to `most` bytes. (Fields are dropped in this order.)
pub struct Heap {
    /// Limit of the heap, in bytes.
    most: u64,
    bits: Map,
    alias: Map,
    arena: Map,
    _others: [Map; 3],
    _statics: Statics,
}

impl Heap {
    pub fn new(most: u64, quarantine: u64) -> Heap {
        let statics = Statics::take();
        let arena = Map::of(ARENA, k::PROT_NONE);
        let bits = Map::new(most / 8);
        let alias = Map::of(most, k::PROT_NONE);
        let others = [
            Map::new(RECORDS),
            Map::new(GRANULES),
            Map::new(FINDINGS_OFFSET + size_of::<Findings>() as u64),
        ];
        let prot = k::PROT_READ | k::PROT_WRITE;
        let flags = k::MAP_SHARED | k::MAP_FIXED;
        // SAFETY: a new file, mapped over address space of ours.
        unsafe {
            let fd = sys!(k::__NR_memfd_create, c"heap".as_ptr(), 0).expect("a file");
            sys!(k::__NR_ftruncate, fd, most).expect("its length");
            for at in [arena.at, alias.at] {
                sys!(k::__NR_mmap, at, most, prot, flags, fd, 0).expect("memory of the arena");
            }
            let _ = sys!(k::__NR_close, fd);
        }
        g().shared.store(others[2].at as *mut _, Relaxed);
        heap::begin(&Places {
            arena: arena.at,
            records: others[0].at,
            granules: others[1].at,
            quarantine,
            redzone: Redzone { least: 16, most: 0 },
        });
        assert!(shadow::settle(arena.at, alias.at.wrapping_sub(arena.at)));
        statics.use_bits(bits.at.wrapping_sub(alias.at / 8));
        Heap {
            most,
            bits,
            alias,
            arena,
            _others: others,
            _statics: statics,
        }
    }

    /// Grows the heap by `more` bytes, as the stub's task does on request.
    pub fn grow(&self, more: u64) {
        let had = arena::mapped();
        let more = more.next_multiple_of(GRANULE);
        if had + more > self.most {
            arena::refuse(more);
            return;
        }
        let bits = (self.bits.at + had / 8) as *mut u8;
        // SAFETY: the bits of this memory, which is not in use yet.
        unsafe { bits.write_bytes(0xff, more as usize / 8) };
        arena::grown(had + more);
    }

    /// Repeats the call after the heap has grown as asked; `None` if there is no memory.
    pub fn retry<T>(&self, mut call: impl FnMut() -> Result<T, ArenaFull>) -> Option<T> {
        loop {
            match call() {
                Ok(value) => return Some(value),
                Err(ArenaFull::Grow(more)) => self.grow(more),
                Err(ArenaFull::Never) => return None,
            }
        }
    }

    pub fn allocate(&self, size: u64, align: u64, from: Origin, zeroed: bool) -> Option<u64> {
        self.retry(|| heap::allocate(size, align, from, zeroed))
    }

    /// The memory at an address of the arena, through its alias.
    pub fn bytes(&mut self, addr: u64, len: u64) -> &mut [u8] {
        let at = addr - self.arena.at;
        assert!(at + len <= self.most);
        // SAFETY: within the memory of the fixture, which is borrowed.
        unsafe { core::slice::from_raw_parts_mut((self.alias.at + at) as *mut u8, len as usize) }
    }

    pub fn findings(&self) -> &Findings {
        findings::findings().expect("a shared area")
    }
}
