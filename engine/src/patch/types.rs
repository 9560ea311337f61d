//! Constants and types shared by plans, trampolines and their users.

/// First bytes of instructions that trap in user mode because they need privilege: string I/O, in, out, hlt, cli, sti.
/// (Programs that have asked for I/O ports are not patched.) A jump has such a byte at the start of each instruction it
/// overwrites. Invalid opcodes would do, too, but raise SIGILL, which programs may block. Nor would int3: it is a trap and
/// no fault, and a SIGTRAP from elsewhere would replace it without a trace.
pub const TRAPS: [u8; 15] = [
    0x6c, 0x6d, 0x6e, 0x6f, 0xe4, 0xe5, 0xe6, 0xe7, 0xec, 0xed, 0xee, 0xef, 0xf4, 0xfa, 0xfb,
];

/// The same, and `ret`.
pub const TRAPS_OR_RET: [u8; 16] = [
    0x6c, 0x6d, 0x6e, 0x6f, 0xc3, 0xe4, 0xe5, 0xe6, 0xe7, 0xec, 0xed, 0xee, 0xef, 0xf4, 0xfa, 0xfb,
];

/// Accesses to pages without guard, in a row, after which a trampoline asks whether its patch is worth its checks. Its
/// counter starts at [`IDLE_START`], so that the lower byte overflows then.
pub const IDLE_ROUND: u32 = 64;
/// See [`IDLE_ROUND`].
pub const IDLE_START: i32 = 256 - IDLE_ROUND as i32;

/// The prefix `fs`, as [`MemOp::segment`](crate::access::MemOp) has it.
pub(super) const FS: u8 = 0x64;
/// See [`FS`].
pub(super) const GS: u8 = 0x65;

/// Bytes of a near jump.
pub const JUMP: usize = 5;

/// Where the distances to the alias are, for each class of pages, relative to the classes:
/// for stores, and for loads. Zero: such accesses do not fault.
pub const CLASS_WRITES: i32 = -4096;
/// See [`CLASS_WRITES`].
pub const CLASS_READS: i32 = -2048;
/// Offsets in the table of pages that are watched as a whole. The entries for stores follow those for loads. The distances
/// to the alias, one for each value that is not zero, precede the table.
pub const WHOLE_WRITES: u64 = ulpf_lib::guard::PAGES;
/// See [`WHOLE_WRITES`].
pub const WHOLE_DISTANCES: i64 = -2048;
/// Number of locks of pages. A thread holds one while it makes a hit and accounts for it. So the old value of each hit is
/// the new value of the one before. A page's lock is that of its alias ([`lock_of`]).
pub const LOCKS: usize = 256;
/// Bytes of a lock. The first one is 0 while the lock is free.
pub const LOCK: usize = 8;
/// Offset, behind the locks, of a byte that is set if the program has more than one thread. While it is clear, locks are not
/// taken.
pub const SEVERAL: i32 = (LOCKS * LOCK) as i32;

/// The number of the lock of the page that has this alias.
pub fn lock_of(alias: u64) -> usize {
    (alias >> 12) as usize % LOCKS
}

/// Size of a checked heap in bytes, as a power of two.
pub const ARENA_BITS: u32 = 35;
/// Bytes with a common owner, as a power of two.
pub const GRANULE_BITS: u32 = 16;
/// A heap with tables that identify the block of each address.
#[derive(Clone, Copy)]
pub struct Blocks {
    /// Its first byte.
    pub heap: u64,
    /// A 32-bit word for each 2^[`GRANULE_BITS`] bytes: their owner, or 0 if they are divided into slots.
    pub owners: u64,
    /// A 16-bit word for each 16 bytes: their slot.
    pub lines: u64,
}

/// Number of page classes.
pub const CLASSES: usize = 256;

/// How far a trampoline has come; see the module's head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Registers are the program's; the part's instruction is still to come.
    Before,
    /// As `Before`, but the registers are in the area.
    Saved,
    /// As `Before`, but the address register is in the area.
    Address,
    /// As `Address`, of the register that the part loads ([`super::plan::Part::own_register`]).
    Own,
    /// As `Saved`, but the other register is the program's.
    Asked,
    /// As `Asked`, and the hit is counted already, in the place that [`ulpf_lib::ring::Area::idle_count`] says.
    AskedTallied,
    /// As `Saved`, and so is r11.
    Closer,
    /// As `Saved`. The lock of the page is the thread's if ecx is 0; the alias is in the address register.
    Locking,
    /// As `Saved`, and the lock of the page is the thread's.
    Locked,
    /// As `Saved`, and the access is counted already.
    Counted,
    /// As `Done`, and the hit is still to be accounted for; the code that does so releases the lock.
    Hit,
    /// As `Hit`, and all three registers are in the area.
    HitSaved,
    /// As `Saved`, and the hit is counted already (in [`ulpf_lib::ring::Area::tally`]).
    Tallied,
    /// The same, as many as [`ulpf_lib::ring::Area::value`] says; r11 is in the area, too.
    Runs,
    /// The instruction is done, its hit counted; whether it was silent is not known yet. The address register and the other
    /// one are in the area, as is rcx but for `Fresh`. The old value is in the other register, or in the area if it is more
    /// than 8 bytes.
    Fresh,
    /// As `Fresh`, while old and new value are compared.
    Compare,
    /// It was silent, which is to be counted. All three registers are in the area.
    Silent,
    /// The store is done, and its hit counted in the place that [`ulpf_lib::ring::Area::idle_count`] says. Two registers are
    /// in the area, the other one is the program's. If rcx is 0, it was silent, which is to be counted.
    Stored,
    /// The same; rcx is what was stored, and what was there is in [`ulpf_lib::ring::Area::old`].
    StoredRcx,
    /// The same; it was silent, which is to be counted.
    StoredSilent,
    /// The instruction is done, and the three registers are in the area.
    Rest,
    /// The instruction is done; the address register is in the area.
    Done,
    /// The instruction is done and the registers are the program's.
    After,
    /// A copied call has made room for its return address: before it once more.
    Pushed,
}

/// Up to here (offset in the trampoline) this phase of this part holds.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    /// Offset of the first byte behind the stretch.
    pub end: u16,
    /// The part that it performs.
    pub part: u8,
    /// State of that part.
    pub phase: Phase,
    /// The stack pointer has moved already, and what it was is in [`ulpf_lib::ring::Area::rsp`].
    pub moved: bool,
}
