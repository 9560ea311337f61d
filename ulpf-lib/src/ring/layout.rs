//! Layout of the shared area; see the folder's head.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::sync::Atomic;

/// Changes with the layout.
pub const SHARED_MAGIC: u64 = u64::from_le_bytes(*b"ulpfrin5");
/// Maximum number of callers of a record.
pub const MAX_FRAMES: usize = 16;
/// Maximum bytes of a value in a record; a longer value is truncated.
pub const MAX_VALUE: usize = 32;
/// Offset of the [`Counters`], in bytes from the start of the area as all `*_OFFSET`.
pub const COUNTERS_OFFSET: u64 = 4096;
/// Watches with a number at or above this share the last slot.
pub const COUNTER_SLOTS: u64 = 1 << 20;
/// Offset of the [`Listed`].
pub const WATCH_TABLE_OFFSET: u64 = COUNTERS_OFFSET + COUNTER_SLOTS * size_of::<Counters>() as u64;
/// Offset of the [`Area`]s.
pub const AREAS_OFFSET: u64 = WATCH_TABLE_OFFSET + COUNTER_SLOTS * size_of::<Listed>() as u64;
/// Number of watches whose hits trampolines can count at the same time; entry 0 is no watch.
pub const TALLIES: usize = 256;
/// Words of [`Area::idle_count`].
pub const IDLE_COUNTS: usize = 512;
/// One for each thread that runs at the same time.
pub const AREAS: u64 = 1 << 15;
/// Offset of the [`RingHead`]s.
pub const HEADS_OFFSET: u64 = AREAS_OFFSET + AREAS * size_of::<Area>() as u64;
/// Offset of the rings; [`ring_place`] gives each.
pub const RINGS_OFFSET: u64 = HEADS_OFFSET + AREAS * size_of::<RingHead>() as u64;
/// End of the rings.
pub const RINGS_END: u64 = ring_place(AREAS - 1).0 + ring_place(AREAS - 1).1 * SLOT;

/// Words of eight bytes in a slot of a ring: a cache line.
pub const SLOT_WORDS: usize = 8;
/// Bytes of a slot.
const SLOT: u64 = SLOT_WORDS as u64 * 8;
/// Numbers of rings, with the slots of each, a power of two. Further threads get smaller rings, so that all rings
/// together stay below 1 GiB.
const SIZES: [(u64, u64); 3] = [(64, 1 << 16), (960, 1 << 11), (AREAS - 1024, 1 << 8)];

/// Offset of a thread's ring in the area, and its number of slots.
pub const fn ring_place(index: u64) -> (u64, u64) {
    let (first, second) = (SIZES[0], SIZES[1]);
    let (mut at, mut n) = (RINGS_OFFSET, index);
    if n < first.0 {
        return (at + n * first.1 * SLOT, first.1);
    }
    at += first.0 * first.1 * SLOT;
    n -= first.0;
    if n < second.0 {
        return (at + n * second.1 * SLOT, second.1);
    }
    at += second.0 * second.1 * SLOT;
    n -= second.0;
    (at + n * SIZES[2].1 * SLOT, SIZES[2].1)
}

/// The first page of the area.
#[repr(C)]
pub struct SharedHeader {
    /// [`SHARED_MAGIC`].
    pub magic: u64,
    /// Hits carry TSC values; time in ns = base_ns + (tsc - base_tsc) * mult >> 32.
    pub base_tsc: u64,
    /// CLOCK_MONOTONIC in nanoseconds when the TSC was `base_tsc`.
    pub base_ns: u64,
    /// Nanoseconds for each TSC tick, times 2^32.
    pub tsc_mult: u64,
    /// The watched process, as the command sees it.
    pub pid: AtomicU32,
    /// Futex word, raised after a record was published while `reader_waits` was set.
    pub wake: AtomicU32,
    /// The reader has seen nothing for a while and is about to wait for `wake`.
    pub reader_waits: AtomicU32,
    /// Number of rings that have been used.
    pub rings: AtomicU32,
    /// Number of entries of the table of watches that have been used.
    pub listed: AtomicU32,
    /// If not 0, a thread waits for room in its ring rather than overwrite unread records, as long as the reader is
    /// alive. The reader increments it as a sign of life.
    pub lossless: AtomicU32,
    /// Futex word, raised when the reader has made room while `writer_waits` was set.
    pub room: AtomicU32,
    /// Some thread waits for room.
    pub writer_waits: AtomicU32,
    // From here on a cache line that all threads write.
    /// Faults on guarded pages, all causes.
    pub faults: AtomicU64,
    /// Accesses to guarded pages that overlap no watch, without those that patches have let pass
    /// (see [`SharedHeader::all_false_positives`]).
    pub false_positives: AtomicU64,
    /// Accesses that needed the slow path (world parked, page opened, one step).
    pub slow: AtomicU64,
    /// Watched program's system calls that went through the stub.
    pub syscalls: AtomicU64,
    /// Number of areas that have been used.
    pub areas: AtomicU32,
    /// The watch (its number, plus 1) that trampolines count in that entry of [`Area::hits`]; a watch may have several.
    pub tallies: [AtomicU32; TALLIES],
    /// Faults by the reason why their instructions were not patched, or faulted despite a patch.
    pub unpatched: [AtomicU64; Unpatched::ALL.len()],
    /// TSC when records of last writers began ([`crate::last_writer`]); 0: they have not begun.
    pub writers_since: AtomicU64,
    /// Where they are in the program: the tables, the first byte of our place whose records they have, and the
    /// [`crate::PageMap`].
    pub writers: [AtomicU64; 3],
    /// The program's end, if a signal that it caused itself has ended it.
    pub crash: Crash,
}

/// Where the program was when a signal ended it.
#[repr(C)]
#[derive(Default)]
pub struct Crash {
    /// The signal's Linux number, written last; 0 without a signal.
    pub signal: AtomicU32,
    /// The Linux thread.
    pub tid: AtomicU32,
    /// 1 if `address` is valid.
    pub has_address: AtomicU32,
    /// Number of valid entries of `callers`.
    pub frames: AtomicU32,
    /// The address that could not be accessed.
    pub address: AtomicU64,
    /// Address of the instruction.
    pub pc: AtomicU64,
    /// TSC.
    pub time: AtomicU64,
    /// The place that holds the pointer which led there, or 0 if it is not known, and that pointer.
    pub source: AtomicU64,
    /// See `source`.
    pub pointer: AtomicU64,
    /// Its last writer ([`crate::last_writer::Site::word`]); 0: not known.
    pub writer: AtomicU64,
    /// The thread, and the TSC from which on it may have been.
    pub writer_since: AtomicU64,
    /// See `writer_since`; 0: not known.
    pub writer_tid: AtomicU32,
    /// Return addresses, the innermost first.
    pub callers: [AtomicU64; MAX_FRAMES],
}

/// The reasons, each with its text for users.
macro_rules! reasons {
    ($($(#[$meaning:meta])* $name:ident => $why:literal,)*) => {
        /// Why an access to a guarded page costs a fault.
        #[repr(u8)]
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum Unpatched {
            $($(#[$meaning])* $name,)*
        }

        impl Unpatched {
            /// All reasons; a reason's index is its place in [`SharedHeader::unpatched`].
            pub const ALL: [Unpatched; [$($why),*].len()] = [$(Unpatched::$name),*];
            /// Text for users.
            pub fn why(self) -> &'static str {
                match self {
                    $(Unpatched::$name => $why,)*
                }
            }
        }
    };
}

reasons! {
    /// Its instruction has met too few guarded pages so far.
    Cold => "not hot yet",
    /// Its instruction is patched; the page's class was not known.
    Page => "first access to a page since watches or mappings changed",
    /// Behind a patched instruction, under the same jump.
    Beneath => "under the jump of another patched instruction",
    /// It was patched, and met no guarded page for long.
    Cooled => "was patched, but met no guarded page for long",
    /// Patching is off, or beyond this processor or program.
    Off => "patching is off",
    /// An access that trampolines cannot make.
    Instruction => "a kind of instruction that is not patched",
    /// The instruction behind it cannot be moved.
    Successor => "what follows it cannot be moved",
    /// Its code is the program's to write, or shared.
    Code => "code that the program can write, or others can see",
    /// Nowhere within reach of its jump.
    Room => "no free memory within reach of its jump",
    /// Jumps led into the middle of its patch.
    JumpedInto => "loops jump into the middle of its patch",
    /// It is behind its patch's jump, and had no room for a jump of its own.
    Entered => "loops jump to it behind its patch's jump",
    /// A breakpoint or a patched system call is there.
    Taken => "a breakpoint or another patch stands there",
    /// Takes the slow path: it can be neither redirected nor patched.
    Slow => "needs the slow path",
}

/// Origin of the hit.
pub mod hit_flags {
    /// The value did not change (a silent store).
    pub const SILENT: u8 = 1;
    /// The kernel made the access on behalf of the system call in `Hit::call`.
    pub const KERNEL: u8 = 2;
    /// The access is wider than the value fields; they hold its first watched bytes.
    pub const TRUNCATED: u8 = 4;
    /// Values are not known: the bytes in question lie behind those that were kept (`last`).
    pub const UNKNOWN: u8 = 8;
    /// The instruction is in a runtime library, and the return addresses were recorded only to name the program's own
    /// call: the last one is that call's.
    pub const CALLER: u8 = 16;
    /// The old value may differ from the new value of the hit before. Either the kernel was writing there, or wrote; or a
    /// debug register reported the access after the fact; or a library made it.
    pub const UNCHAINED: u8 = 32;
    /// The access begins inside a watch that moves: the record says how many bytes behind its beginning.
    pub const INSIDE: u8 = 64;
}

/// The writing end of a ring. `A` is another cell in models alone.
#[repr(C, align(64))]
#[derive(Default)]
pub struct RingHead<A = AtomicU64> {
    /// Slots handed out since the beginning.
    pub taken: A,
    /// Records begun since the beginning.
    pub records: A,
    /// Slots that the reader has finished, where no record may be lost ([`SharedHeader::lossless`]).
    pub read: A,
}

impl<A: Atomic<u64>> RingHead<A> {
    /// `taken` and `records`, as [`super::Rings::head`] has them.
    pub fn progress(&self) -> (u64, u64) {
        let taken = self.taken.load(Ordering::Acquire);
        (taken, self.records.load(Ordering::Relaxed))
    }
}

/// A watch as it was set, by its number; used when looking back. Written by the stub's task.
#[repr(C)]
#[derive(Default)]
pub struct Listed {
    /// First byte.
    pub start: AtomicU64,
    /// In bytes.
    pub len: AtomicU64,
    /// `WatchKind`, and `listed::` bits.
    pub what: AtomicU32,
    /// Its hits carry this number (that of a watch on the whole heap, else its own).
    pub reported_as: AtomicU32,
    /// TSC when it took effect.
    pub since: AtomicU64,
}

/// Bits of [`Listed::what`].
pub mod listed {
    /// The bits of the [`crate::WatchKind`].
    pub const KIND: u32 = 3;
    /// Its hits are written to the rings.
    pub const LOGGED: u32 = 4;
    /// It has been removed.
    pub const ENDED: u32 = 8;
    /// It is not in the debugger's own table (`monitor ulpf watch`).
    pub const OUT_OF_BAND: u32 = 16;
    /// It has been switched off, and can be switched on again.
    pub const OFF: u32 = 32;
    /// It follows pointers: the entry is its present range (`start` is 0 for none), with the time since when.
    pub const FOLLOWS: u32 = 64;
}

/// Counters of one watch.
#[repr(C)]
#[derive(Default)]
pub struct Counters {
    /// Accesses of the watch's kind that met it.
    pub hits: AtomicU64,
    /// Write hits that left the value as it was (also counted in `hits`).
    pub silent: AtomicU64,
    /// Accesses to a page of this watch that met no watch. All watches of the page share the count, so it is kept at the
    /// first one. Accesses that patches have let pass are only in the total.
    pub false_positives: AtomicU64,
    /// Times the program was stopped for this watch.
    pub stops: AtomicU64,
    /// Hits that a debug register has reported (also counted in `hits`).
    pub traps: AtomicU64,
    /// Where the watch is now: 0 guarded page, 1 debug register.
    pub placement: AtomicU64,
    /// 1 while the program has no memory at (a part of) the watched range.
    pub gone: AtomicU64,
    /// False positives at which the stub reconsiders the watch's placement; 0: not yet set.
    pub look_at: AtomicU64,
    /// Hits that the watch's filter has rejected (also counted in `hits`, and in `silent` if they are).
    pub filtered: AtomicU64,
    /// Number of times that a watch that follows pointers has moved.
    pub moved: AtomicU64,
    /// 0.
    pub reserved: [u64; 6],
}

/// Working memory of the patches' trampolines for each thread, found through gs (`engine/src/patch`).
#[repr(C)]
pub struct Area {
    /// The registers that a trampoline uses: its address register, rcx, and one more.
    pub address: AtomicU64,
    /// See `address`.
    pub rcx: AtomicU64,
    /// See `address`.
    pub other: AtomicU64,
    /// False positives that trampolines have let pass. Only the area's thread writes it.
    pub passed: AtomicU64,
    /// r11, during a trampoline's full check.
    pub r11: AtomicU64,
    /// For a hit: the address of the code that accounts for it. The next fields are the address of the instruction's data
    /// for that code, the alias of the accessed bytes, and the old bytes.
    pub entry: AtomicU64,
    /// See `entry`.
    pub hit: AtomicU64,
    /// See `entry`.
    pub alias: AtomicU64,
    /// See `entry`; up to 64 bytes.
    pub old: [AtomicU64; 8],
    /// That code's stack, the program's stack pointer meanwhile, and the address to return to.
    pub stack: AtomicU64,
    /// See `stack`.
    pub rsp: AtomicU64,
    /// See `stack`.
    pub back: AtomicU64,
    /// Nonzero while that code runs.
    pub direct: AtomicU64,
    /// The tally in which a trampoline counts the present hit.
    pub tally: AtomicU64,
    /// Target of a patched call, return or jump through memory; and the value that a patched push stores.
    pub target: AtomicU64,
    /// See `target`.
    pub value: AtomicU64,
    /// The thread's present stamp in records of last writers, in both halves ([`crate::last_writer`]); 0: none.
    pub stamp: AtomicU64,
    /// TSC when it got it.
    pub stamped: AtomicU64,
    /// A sum of the registers in this area, when the stub's task last read them.
    pub seen: AtomicU64,
    /// Nanoseconds that the thread had run when the stub's task has asked.
    pub ran: AtomicU64,
    /// 0.
    pub reserved: [AtomicU64; 5],
    /// Hits that trampolines have counted themselves, and the silent ones of them; see
    /// [`SharedHeader::tallies`]. Only the area's thread writes them while it runs.
    pub hits: [AtomicU64; TALLIES],
    /// See `hits`.
    pub silent: [AtomicU64; TALLIES],
    /// For each patch (some share one): its trampoline's count of consecutive accesses to pages without guard. The upper
    /// half counts how often that has reached its limit.
    pub idle_count: [AtomicU64; IDLE_COUNTS],
}

impl SharedHeader {
    /// All false positives; `areas` are those of the shared area.
    pub fn all_false_positives(&self, areas: &[Area]) -> u64 {
        let used = self.areas.load(Ordering::Acquire) as usize;
        let passed = areas.iter().take(used);
        let passed = passed.map(|a| a.passed.load(Ordering::Relaxed));
        // The program may have written anything there.
        passed.fold(
            self.false_positives.load(Ordering::Relaxed),
            u64::saturating_add,
        )
    }
    /// Hits of a watch, and the silent ones of them, that trampolines have counted themselves, in addition to its
    /// [`Counters`].
    pub fn tallied(&self, areas: &[Area], watch: u32) -> (u64, u64) {
        let used = self.areas.load(Ordering::Acquire) as usize;
        let mut sum = (0, 0);
        for (n, of) in self.tallies.iter().enumerate() {
            if of.load(Ordering::Relaxed) != watch.wrapping_add(1) {
                continue;
            }
            for a in areas.iter().take(used) {
                let add = |to: &mut u64, n: &AtomicU64| {
                    *to = to.saturating_add(n.load(Ordering::Relaxed));
                };
                add(&mut sum.0, &a.hits[n]);
                add(&mut sum.1, &a.silent[n]);
            }
        }
        sum
    }
    /// Turns a TSC reading into CLOCK_MONOTONIC nanoseconds.
    pub fn nanos(&self, tsc: u64) -> u64 {
        self.clock().nanos(tsc)
    }
    /// The clock of hits' time stamps.
    pub fn clock(&self) -> Clock {
        Clock {
            base_tsc: self.base_tsc,
            base_ns: self.base_ns,
            tsc_mult: self.tsc_mult,
        }
    }
}

/// A copy of an area's clock, read once: the area's other side may write to it at any time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    /// [`SharedHeader::base_tsc`].
    pub base_tsc: u64,
    /// [`SharedHeader::base_ns`].
    pub base_ns: u64,
    /// [`SharedHeader::tsc_mult`].
    pub tsc_mult: u64,
}

impl Clock {
    /// Turns a TSC reading into CLOCK_MONOTONIC nanoseconds.
    pub fn nanos(&self, tsc: u64) -> u64 {
        let delta = u128::from(tsc.wrapping_sub(self.base_tsc)) * u128::from(self.tsc_mult);
        self.base_ns.wrapping_add((delta >> 32) as u64)
    }

    /// Nanoseconds from a TSC reading to `now`, another one; 0 if it is later.
    pub fn ago(&self, now: u64, tsc: u64) -> u64 {
        self.nanos(now).saturating_sub(self.nanos(tsc.min(now)))
    }
}

const _: () = assert!(size_of::<Counters>().is_power_of_two());
const _: () = assert!(core::mem::offset_of!(SharedHeader, faults) == 64);
const _: () = assert!(size_of::<SharedHeader>() <= COUNTERS_OFFSET as usize);
const _: () = assert!(size_of::<RingHead>() == 64 && size_of::<Listed>() == 32);
const _: () = assert!(HEADS_OFFSET.is_multiple_of(64) && RINGS_OFFSET.is_multiple_of(4096));
const _: () =
    assert!(core::mem::offset_of!(Area, hits) == 256 && size_of::<Area>().is_multiple_of(64));
