//! The shared area between the stub and the command: hit ring and counters, in one memfd.
//!
//! ```text
//! 0                 RING_OFFSET              COUNTERS_OFFSET          SHARED_LEN
//! | SharedHeader …  | RING_RECORDS × HitRecord | COUNTER_SLOTS × Counters | AREAS × Area |
//! ```
//!
//! Writers (program threads inside the fault handler) take a ticket with `head.fetch_add(1)`, fill
//! the slot `ticket % RING_RECORDS` and publish it by storing `ticket + 1` to `seq` with release
//! order. They never wait. One reader follows; a slot whose `seq` is larger than expected was
//! overwritten, and the reader counts the records that it lost.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

pub const SHARED_MAGIC: u64 = u64::from_le_bytes(*b"ulpfring");
pub const RING_OFFSET: u64 = 4096;
pub const RING_RECORDS: u64 = 1 << 16;
pub const MAX_FRAMES: usize = 16;
pub const MAX_VALUE: usize = 32;
pub const COUNTERS_OFFSET: u64 = RING_OFFSET + RING_RECORDS * size_of::<HitRecord>() as u64;
/// Watches with a number at or above this share the last slot.
pub const COUNTER_SLOTS: u64 = 1 << 20;
pub const AREAS_OFFSET: u64 = COUNTERS_OFFSET + COUNTER_SLOTS * size_of::<Counters>() as u64;
/// One for each thread that runs at the same time.
pub const AREAS: u64 = 1 << 15;
pub const SHARED_LEN: u64 = AREAS_OFFSET + AREAS * size_of::<Area>() as u64;

#[repr(C)]
pub struct SharedHeader {
    pub magic: u64,
    /// Tickets handed out.
    pub head: AtomicU64,
    /// Futex word, raised after a record was published while `reader_waits` was set.
    pub wake: AtomicU32,
    pub reader_waits: AtomicU32,
    /// Faults on guarded pages, all causes.
    pub faults: AtomicU64,
    /// Accesses to guarded pages that overlap no watch, without those that patches have let pass
    /// (see [`SharedHeader::all_false_positives`]).
    pub false_positives: AtomicU64,
    /// Accesses that needed the slow path (world parked, page opened, one step).
    pub slow: AtomicU64,
    /// Watched program's system calls that went through the stub.
    pub syscalls: AtomicU64,
    /// `HitRecord::time` is a TSC value; time in ns = base_ns + (tsc - base_tsc) * mult >> 32.
    pub base_tsc: u64,
    pub base_ns: u64,
    pub tsc_mult: u64,
    /// How many areas have been in use.
    pub areas: AtomicU32,
}

/// How the hit came about.
pub mod hit_flags {
    /// The value did not change (a silent store).
    pub const SILENT: u8 = 1;
    /// The kernel made the access on behalf of the system call in `HitRecord::syscall`.
    pub const KERNEL: u8 = 2;
    /// The access is wider than the value fields; they hold its first watched bytes.
    pub const TRUNCATED: u8 = 4;
}

/// One hit. All multi-byte fields in host order.
#[repr(C)]
pub struct HitRecord {
    /// Ticket + 1 once the record is complete.
    pub seq: AtomicU64,
    pub watch: u32,
    pub tid: u32,
    /// TSC at the hit.
    pub time: u64,
    /// Address of the instruction that made the access.
    pub pc: u64,
    /// First byte that the access shares with the watch, and how many.
    pub addr: u64,
    pub len: u32,
    /// `watch::AccessKind`.
    pub kind: u8,
    /// `hit_flags`.
    pub flags: u8,
    /// How many of `frames` are filled (return addresses, innermost first).
    pub frames_len: u8,
    /// Size in bytes of `old` and `new` that is used.
    pub value_len: u8,
    /// System call number when `hit_flags::KERNEL` is set.
    pub syscall: u32,
    pub reserved: u32,
    pub reserved2: u64,
    pub old: [u8; MAX_VALUE],
    pub new: [u8; MAX_VALUE],
    pub frames: [u64; MAX_FRAMES],
    /// Arguments and result of the system call when `hit_flags::KERNEL` is set.
    pub args: [u64; 6],
    pub result: i64,
    pub reserved3: u64,
}

/// Counters of one watch.
#[repr(C)]
#[derive(Default)]
pub struct Counters {
    pub hits: AtomicU64,
    /// Write hits that left the value as it was (also counted in `hits`).
    pub silent: AtomicU64,
    /// Accesses to a page of this watch that met no watch; shared by all watches of the page, so
    /// counted at the first one. Those that patches have let pass are only in the total.
    pub false_positives: AtomicU64,
    /// Times the program was stopped for this watch.
    pub stops: AtomicU64,
    /// Hits that a debug register has reported (also counted in `hits`).
    pub traps: AtomicU64,
    /// Where the watch is now: 0 guarded page, 1 debug register.
    pub placement: AtomicU64,
    /// 1 while the program has no memory at (a part of) the watched range.
    pub gone: AtomicU64,
    /// False positives at which the stub looks whether the watch is in the right place; 0: not yet set.
    pub look_at: AtomicU64,
    /// Hits that the watch's filter has rejected (also counted in `hits`, and in `silent` if they are).
    pub filtered: AtomicU64,
    pub reserved: [u64; 7],
}

/// What the bodies of patches keep for each thread, found through gs (`engine/src/patch`).
#[repr(C)]
pub struct Area {
    /// The registers that a body uses: its address register, rcx, and one more.
    pub address: AtomicU64,
    pub rcx: AtomicU64,
    pub other: AtomicU64,
    /// Address of the page classes, a byte for each page number; before them the distances to the
    /// alias.
    pub classes: AtomicU64,
    /// Addresses of the bits that say which stores (loads) concern a watch, one for each byte of the
    /// alias, less what an alias address / 8 adds.
    pub writes: AtomicU64,
    pub reads: AtomicU64,
    /// False positives that bodies have let pass. Only the area's thread writes it.
    pub passed: AtomicU64,
    /// r11, while a body looks closer.
    pub r11: AtomicU64,
}

impl SharedHeader {
    /// All false positives; `areas` are those of the shared area.
    pub fn all_false_positives(&self, areas: &[Area]) -> u64 {
        let used = self.areas.load(Ordering::Acquire) as usize;
        let passed = areas.iter().take(used);
        let passed = passed.map(|a| a.passed.load(Ordering::Relaxed));
        self.false_positives.load(Ordering::Relaxed) + passed.sum::<u64>()
    }
    /// Turns a TSC reading into CLOCK_MONOTONIC nanoseconds.
    pub fn nanos(&self, tsc: u64) -> u64 {
        let delta = tsc.wrapping_sub(self.base_tsc) as u128 * self.tsc_mult as u128;
        self.base_ns.wrapping_add((delta >> 32) as u64)
    }
    pub fn tickets(&self) -> u64 {
        self.head.load(Ordering::Acquire)
    }
}

const _: () = assert!(size_of::<Counters>().is_power_of_two());
const _: () = assert!(size_of::<HitRecord>() == 320);
const _: () = assert!(size_of::<SharedHeader>() <= RING_OFFSET as usize);
