//! Types shared by this folder: the memory it is given, how an access reaches its alias, and how it
//! ends.

use super::native::FaultInfo;
use ulpf_lib::{AccessKind, AliasAddr, PAGE_SIZE, PageMap, TargetAddr};

/// Flags that instructions with a memory operand may read or change.
pub(super) use ulpf_lib::eflags::STATUS;

/// Code memory mapped twice, so that no page is ever writable and executable at once. The engine
/// owns all of it. Lives as long as the process.
#[derive(Clone, Copy, Debug)]
pub struct CodeArena {
    /// The writable view.
    pub rw: *mut u8,
    /// The executable view.
    pub rx: *const u8,
    /// Bytes of each view, or 0 without one.
    pub len: usize,
}

/// Zeroed memory (fresh from mmap) for the site table; see [`super::sites::Thunks::data_size`].
#[derive(Clone, Copy, Debug)]
pub struct DataArena {
    /// First byte, of a page.
    pub base: *mut u8,
    /// In bytes.
    pub len: usize,
}

/// Where the bytes of an access can be reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Open {
    /// Contiguous memory that may be used for this kind of access. Same offset in the page.
    Alias(AliasAddr),
    /// Nothing of ours: use the address itself. It may fault, and that fault is the program's.
    Plain,
    /// Partly ours, and no contiguous alias.
    Split,
}

/// Knows the guarded pages.
pub trait AliasMap {
    /// `len` is at least 1 and at most a few KiB. Must answer [`Open::Plain`] where the *program*
    /// may not do such an access (the alias could), so that it gets its fault.
    fn open(&self, addr: TargetAddr, len: u64, kind: AccessKind) -> Open;
}

impl AliasMap for PageMap {
    fn open(&self, addr: TargetAddr, len: u64, kind: AccessKind) -> Open {
        if let Some(alias) = PageMap::open(self, addr, len, kind.writes()) {
            return Open::Alias(alias);
        }
        let (mut page, mut ours) = (addr.page(), false);
        while page.0 < addr.0.saturating_add(len) {
            let entry = self.entry(page);
            if entry.moved() && !entry.permits(kind) {
                // The program's own fault, on this page: none before it may be guarded then.
                return if ours { Open::Split } else { Open::Plain };
            }
            ours |= entry.moved();
            page = page.offset(PAGE_SIZE);
        }
        if ours { Open::Split } else { Open::Plain }
    }
}

/// How the execution of an instruction has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Done; registers, flags and rip are as the hardware leaves them.
    Done,
    /// One iteration of a repeated string instruction done, rip unchanged. Call again, or return
    /// to the program, which goes on by itself.
    Repeat,
    /// The native access faulted or trapped. Nothing has changed (except that elements of a
    /// gather or scatter that were done are marked so, as the hardware does). The caller delivers
    /// the signal to the program.
    Fault(FaultInfo),
    /// Nothing has changed; the caller lets the CPU do the instruction with the pages open.
    NeedSlow(Slow),
}

/// Why an instruction is left to the open-and-step path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slow {
    /// Far transfers, segment loads, tiles, privileged and other instructions that cannot be
    /// redirected.
    Unsupported,
    /// An operand has no contiguous alias.
    Split,
    /// The instruction raises a general protection fault; let it do so at its own address.
    Trap,
    /// The code arena is full.
    ArenaFull,
    /// Vector state is needed but the `Cpu` has none, or has components we do not handle.
    NoState,
}

/// The address to use for an access; `None` when it has no contiguous one.
pub(super) fn open(map: &dyn AliasMap, addr: u64, len: u64, kind: AccessKind) -> Option<u64> {
    match map.open(TargetAddr(addr), len, kind) {
        Open::Alias(a) => Some(a.0),
        Open::Plain => Some(addr),
        Open::Split => None,
    }
}

/// Fault addresses as the program knows them.
pub(super) fn translate(mut info: FaultInfo, pc: u64, moved: (u64, u64, u64)) -> FaultInfo {
    const SIGILL: i32 = 4;
    const SIGFPE: i32 = 8;
    let (alias, len, back) = moved;
    if info.signo == SIGILL || info.signo == SIGFPE {
        info.addr = pc;
    } else if info.addr.wrapping_sub(alias) < len {
        info.addr = info.addr.wrapping_add(back);
    }
    info
}
