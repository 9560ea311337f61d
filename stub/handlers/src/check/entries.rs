//! How the program's calls of its allocator reach us.
//!
//! ```text
//! malloc:  mov r11, entry n; jmp r11 ─▶ entry n: gs:[hit] = KNOWN[n]; jmp gs:[entry] ─▶ ulpf_direct ─▶ called()
//!                                                                                            │
//! the caller  ◀────────────── ret ◀──────────── ulpf_check_return ◀──── ulpf_direct_tail ◀───┘
//! ```
//! The first bytes of each function become a jump for good; its original first instructions are not executed any more.
//! By the calling convention no value lives in r11 at the beginning of a function. A thread that is interrupted in an
//! entry is put back to the beginning of the function ([`leave`]), so no context shows an entry. A thread without its
//! area in gs faults in the entry. It gets its area there; or, if the program uses gs, the fault handler serves the
//! call.

use core::arch::global_asm;
use core::cell::UnsafeCell;
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering::*};

use ulpf_lib::ring::Area;
use ulpf_lib::{AccessKind, PAGE_SIZE};
use ulpf_stub_tables::edit::Edit;
pub use ulpf_stub_tables::edit::FUNCTION_JUMP as JUMP;
use ulpf_stub_tables::patches::Known;

use super::twin::Twin;
use super::{requests, thunks};
use crate::global::tables;
use crate::runtime::frame::UContext;
use crate::runtime::memory;

/// The heap is served here. Changes once, with the world stopped.
pub static ON: AtomicBool = AtomicBool::new(false);
/// The functions that are served.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Function {
    /// Arguments: (size)
    Malloc = 1,
    /// Arguments: (number, size)
    Calloc,
    /// Arguments: (block, size)
    Realloc,
    /// Arguments: (block, number, size)
    Reallocarray,
    /// Arguments: (block)
    Free,
    /// Arguments: (alignment, size)
    Memalign,
    /// Arguments: (where the address goes, alignment, size)
    PosixMemalign,
    /// Arguments: (size); the block begins at a page
    Valloc,
    /// Arguments: (size); whole pages
    Pvalloc,
    /// Arguments: (block)
    UsableSize,
    /// `operator delete`; arguments: (block)
    Delete,
    /// `operator delete[]`; arguments: (block)
    DeleteArray,
    /// An `operator new[]` that continues as `operator new`; arguments: (size, …)
    NewArray,
    /// An allocator's own `operator new`; arguments: (size, alignment)
    NewAligned,
    /// Arguments: (to, from, bytes). This one and those below copy; the call continues in the original function.
    Memcpy,
    /// See above.
    Mempcpy,
    /// Arguments: (to, from)
    Strcpy,
    /// See above.
    Stpcpy,
    /// See above.
    Strcat,
    /// Arguments: (to, from, at most)
    Strncpy,
    /// See above.
    Strncat,
}

impl Function {
    /// True if the call continues, in the called function or in another one.
    pub fn goes_on(self) -> bool {
        self as u8 >= Function::Memcpy as u8 || self == Function::NewArray
    }

    /// True if the call, given its first argument, asks for a new block rather than being about an existing one.
    pub fn allocates(self, first: u64) -> bool {
        use Function::*;
        match self {
            Malloc | Calloc | Memalign | PosixMemalign | Valloc | Pvalloc | NewAligned => true,
            Realloc | Reallocarray => first == 0,
            _ => false,
        }
    }

    /// True if the first argument is an existing block.
    pub fn frees_or_asks(self) -> bool {
        use Function::*;
        matches!(
            self,
            Realloc | Reallocarray | Free | UsableSize | Delete | DeleteArray
        )
    }

    /// Index in `ulpf_lib::ring::findings::COPIES`.
    pub fn copies(self) -> Option<u32> {
        (self as u32).checked_sub(Function::Memcpy as u32)
    }
}

/// The functions served the program before we came, and blocks of that time are still in use. A call about such a block
/// continues in the original function, whose first instructions have been moved (`control/own_functions.rs` of the
/// stub's task). Changes with the world stopped.
pub static PASSES: AtomicBool = AtomicBool::new(false);

/// The allocator also returns blocks from functions that are not served here. A call about such a block continues in
/// the original function, as with [`PASSES`]. Changes with the world stopped.
pub static OTHERS: AtomicBool = AtomicBool::new(false);
/// Such an allocator serves the next allocation itself: its other functions rely on its initialisation.
static BEGINS: AtomicBool = AtomicBool::new(false);

/// Records that functions of such an allocator come here, and that calls about its own blocks can continue. Called by
/// the stub's task with the world stopped.
pub fn has_others() {
    OTHERS.store(true, SeqCst);
    BEGINS.store(true, SeqCst);
}

/// True once, if the allocator itself must serve this call for a block.
#[inline]
pub fn begins_itself() -> bool {
    BEGINS.load(Relaxed) && BEGINS.swap(false, Relaxed)
}

/// Limit of functions in all files of a program together.
pub const MOST: usize = 256;
/// Bytes of an entry.
const ENTRY: usize = 64;
/// Bytes for the copy of a function's first instructions, which are relocated.
pub const COPY: u64 = 160;
/// Bytes of the first of the two instructions of a jump.
const STEP: u64 = 10;

/// The table that [`Area::hit`] points into.
#[repr(transparent)]
pub struct Entries(UnsafeCell<[Known; MOST]>);

// SAFETY: written by the stub's task with the world stopped.
unsafe impl Sync for Entries {}

const NOBODY: Known = Known {
    pc: 0,
    after: 0,
    back: 0,
    size: 0,
    kind: AccessKind::Read,
    leaving: false,
    repeats: false,
    call: 0,
    insn: None,
    idle_count: 0,
    operand: None,
};

#[unsafe(no_mangle)]
static ulpf_check_known: Entries = Entries(UnsafeCell::new([NOBODY; MOST]));
/// The same for calls that continue in the program's own function. `back` is the new beginning of that function, or 0.
static PASSED: Entries = Entries(UnsafeCell::new([NOBODY; MOST]));
/// Original bytes at the place of each jump. They are in the image for the next stub: it stays after a detach that
/// leaves blocks, and the table of edits does not.
static ORIGINALS: Beginnings = Beginnings(UnsafeCell::new([[0; JUMP]; MOST]));

/// Where the instructions of these bytes are in the copy, by their offsets: distance from its beginning, or 0.
static MOVED: Beginnings = Beginnings(UnsafeCell::new([[0; JUMP]; MOST]));

#[repr(transparent)]
struct Beginnings(UnsafeCell<[[u8; JUMP]; MOST]>);

// SAFETY: written by the stub's task with the world stopped.
unsafe impl Sync for Beginnings {}

impl Beginnings {
    fn get(&self, n: usize) -> Option<&'static [u8; JUMP]> {
        // SAFETY: written with the world stopped.
        unsafe { &*self.0.get() }.get(n)
    }
    /// Called by the stub's task with the world stopped.
    fn put(&self, n: usize, bytes: [u8; JUMP]) {
        // SAFETY: the world is stopped.
        if let Some(place) = unsafe { (*self.0.get()).get_mut(n) } {
            *place = bytes;
        }
    }
}

/// Not 0 in a forked child.
#[unsafe(no_mangle)]
static ulpf_check_asleep: AtomicU8 = AtomicU8::new(0);

global_asm!(
    ".text",
    ".p2align 6",
    ".globl ulpf_check_entries",
    "ulpf_check_entries:",
    ".set ulpf_check_n, 0",
    ".rept {most}",
    ".p2align 6",
    "lea r11, [rip + ulpf_check_known + ulpf_check_n]",
    "cmp byte ptr [rip + ulpf_check_asleep], 0",
    "jne 2f",
    "mov gs:[{hit}], r11",
    "jmp qword ptr gs:[{entry}]",
    "2:",
    "mov rcx, r11",
    "jmp ulpf_check_alone",
    ".set ulpf_check_n, ulpf_check_n + {size}",
    ".endr",
    ".p2align 6",
    ".globl ulpf_check_return",
    "ulpf_check_return:",
    "ret",
    "ud2",
    most = const MOST,
    size = const size_of::<Known>(),
    hit = const offset_of!(Area, hit),
    entry = const offset_of!(Area, entry),
);

unsafe extern "C" {
    fn ulpf_check_entries();
    fn ulpf_check_return();
}

pub fn entries() -> u64 {
    ulpf_check_entries as *const () as u64
}

pub fn way_back() -> u64 {
    ulpf_check_return as *const () as u64
}

pub fn known(n: usize) -> Option<&'static Known> {
    // SAFETY: written with the world stopped.
    unsafe { &*ulpf_check_known.0.get() }.get(n)
}

/// The number of the function at `at`, if it is served.
fn number(at: u64) -> Option<usize> {
    (0..MOST).find(|n| known(*n).is_some_and(|k| k.pc == at))
}

/// Adds the function at `at`, and returns its number. `on` is where the call continues instead of returning. Called by
/// the stub's task with the world stopped.
pub fn add(at: u64, function: Function, on: Option<u64>) -> Option<usize> {
    let n = (0..MOST).find(|n| known(*n).is_some_and(|k| k.pc == 0 || k.pc == at))?;
    // SAFETY: no thread executes an entry while the world is stopped.
    let slot = unsafe { (*ulpf_check_known.0.get()).get_mut(n)? };
    *slot = Known {
        pc: at,
        after: on.unwrap_or(way_back()),
        back: on.unwrap_or(way_back()),
        call: function as u8,
        ..NOBODY
    };
    Some(n)
}

/// The jump to entry `n`, by which the code of its function begins.
pub fn jump(n: usize) -> [u8; JUMP] {
    jump_to(entry(n))
}

/// The jump to entry `n` of another image of ours.
pub fn jump_there(n: usize, twin: Twin) -> [u8; JUMP] {
    jump_to(twin.theirs(entry(n)))
}

fn jump_to(entry: u64) -> [u8; JUMP] {
    let [a, b, c, d, e, f, g, h] = entry.to_le_bytes();
    [0x49, 0xbb, a, b, c, d, e, f, g, h, 0x41, 0xff, 0xe3]
}

/// Address of entry `n`.
pub fn entry(n: usize) -> u64 {
    entries() + (n * ENTRY) as u64
}

/// Keeps the original bytes of function `n` ([`original`]). Called by the stub's task with the world stopped.
pub fn keep(n: usize, original: [u8; JUMP]) {
    ORIGINALS.put(n, original);
}

/// Original bytes of function `n`, in the place of its jump.
pub fn original(n: usize) -> Option<&'static [u8; JUMP]> {
    ORIGINALS.get(n)
}

/// Keeps the places of the first instructions of function `n` in their copy ([`moved`]). Called by the stub's task with
/// the world stopped.
pub fn keep_moved(n: usize, offsets: [u8; JUMP]) {
    MOVED.put(n, offsets);
}

/// Places of the first instructions of function `n` in their copy.
pub fn moved(n: usize) -> Option<&'static [u8; JUMP]> {
    MOVED.get(n)
}

/// A signal had interrupted a function's first instructions before they became a jump: the thread continues in their
/// copy.
pub fn go_on(uc: &mut UContext) {
    if !ON.load(Relaxed) {
        return;
    }
    let at = uc.gprs.rip;
    let functions = &tables().edits.functions;
    let Some(function) = functions.before(at).filter(|f| at < f.end()) else {
        return;
    };
    let n = function.number;
    let (Some(known), Some(own), Some(offsets)) = (known(n), own(n), moved(n)) else {
        return;
    };
    let offset = offsets.get((at - known.pc) as usize).copied().unwrap_or(0);
    if own.back != 0 && offset != 0 {
        uc.gprs.rip = own.back + u64::from(offset);
    } else if known.back != way_back() {
        uc.gprs.rip = known.back;
    }
}

/// Sets the new beginning of the served function at `at`, for calls that continue in it. Called by the stub's task with
/// the world stopped.
pub fn pass(at: u64, moved: u64) {
    let Some(n) = number(at) else {
        return;
    };
    // SAFETY: the world is stopped.
    let passed = unsafe { (*PASSED.0.get()).get_mut(n) };
    if let (Some(passed), Some(known)) = (passed, known(n)) {
        *passed = Known {
            pc: known.pc,
            after: moved,
            back: moved,
            call: known.call,
            ..NOBODY
        };
    }
}

/// The record for the tail of a call that continues in the program's own function.
pub fn passed(known: &Known) -> Option<&'static Known> {
    let offset = |of: &Entries| (known as *const Known as u64).wrapping_sub(of.0.get() as u64);
    let n = offset(&ulpf_check_known).min(offset(&PASSED)) as usize / size_of::<Known>();
    own(n).filter(|own| own.back != 0)
}

/// The same by the function's number in the table.
pub fn own(n: usize) -> Option<&'static Known> {
    // SAFETY: written with the world stopped.
    unsafe { &*PASSED.0.get() }.get(n)
}

/// True if `at` is in the copy of a function's first instructions: the call goes on in the program's own function.
pub fn is_in_copy(at: u64) -> bool {
    let inside = |own: &Known| own.back != 0 && at.wrapping_sub(own.back) < COPY;
    (0..MOST).filter_map(own).any(inside)
}

/// The pages that hold the copy at `back`.
pub fn copy_pages(back: u64) -> impl Iterator<Item = u64> {
    (back & !(PAGE_SIZE - 1)..back + COPY).step_by(PAGE_SIZE as usize)
}

/// The program's own function of this kind that is nearest to `at`.
pub fn own_of(kind: Function, at: u64) -> Option<&'static Known> {
    let all = (0..MOST).filter_map(own).filter(|own| own.back != 0);
    all.filter(|own| function(own) == Some(kind))
        .min_by_key(|own| own.pc.abs_diff(at))
}

/// True if this code is the jump to an entry: ours, or one of another image.
pub fn is_jump(code: &[u8; JUMP]) -> bool {
    code.starts_with(&[0x49, 0xbb]) && code.ends_with(&[0x41, 0xff, 0xe3])
}

/// The function or request whose jump contains `addr` behind its first byte: no instruction begins there.
pub fn around(addr: u64) -> Option<&'static Known> {
    let edits = &tables().edits;
    let function = edits.functions.before(addr).filter(|f| addr < f.end());
    match function {
        Some(function) => known(function.number),
        None => requests::around(addr),
    }
}

/// The function of whose jump a thread has executed the first half, in a step; or the request of whose jump all.
pub fn begun(pc: u64) -> Option<&'static Known> {
    let function = tables().edits.functions.at(pc.wrapping_sub(STEP));
    match function {
        Some(function) => known(function.number),
        None => requests::stepped(pc),
    }
}

/// The function or request at `at`.
pub fn at(at: u64) -> Option<&'static Known> {
    match number(at) {
        Some(n) => known(n),
        None => requests::at(at),
    }
}

/// The function that begins at `at`, if it is served.
pub fn of(at: u64) -> Option<Function> {
    number(at).and_then(known).and_then(function)
}

/// Removes the function at `at`, whose code is unmapped.
pub fn remove(at: u64) {
    for table in [&ulpf_check_known, &PASSED] {
        // SAFETY: the world is stopped.
        let slots = unsafe { &mut *table.0.get() };
        slots
            .iter_mut()
            .filter(|k| k.pc == at)
            .for_each(|k| *k = NOBODY);
    }
}

pub fn function(known: &Known) -> Option<Function> {
    use Function::*;
    const ALL: [Function; 21] = [
        Malloc,
        Calloc,
        Realloc,
        Reallocarray,
        Free,
        Memalign,
        PosixMemalign,
        Valloc,
        Pvalloc,
        UsableSize,
        Delete,
        DeleteArray,
        NewArray,
        NewAligned,
        Memcpy,
        Mempcpy,
        Strcpy,
        Stpcpy,
        Strcat,
        Strncpy,
        Strncat,
    ];
    ALL.into_iter().find(|f| *f as u8 == known.call)
}

/// Makes the functions serve a forked child without the stub's task.
pub fn fall_asleep() {
    ulpf_check_asleep.store(1, Relaxed);
}

pub fn asleep() -> bool {
    ulpf_check_asleep.load(Relaxed) != 0
}

/// True if the functions of that image serve a program without the stub's task.
pub fn are_asleep(twin: Twin) -> bool {
    twin.is_set(&ON) && twin.is_set(&ulpf_check_asleep)
}

/// Returns from the function, as `ret` does.
pub fn go_back(uc: &mut UContext) {
    if let Some(to) = memory::get::<u64>(uc.gprs.rsp) {
        uc.gprs.rip = to;
        uc.gprs.rsp += 8;
    }
}

/// Puts a thread that is interrupted on its way here, or back, into the program's own code.
pub fn leave(uc: &mut UContext) -> bool {
    if !ON.load(Relaxed) {
        return false;
    }
    if requests::leave(uc) {
        return true;
    }
    let rip = uc.gprs.rip;
    if rip == way_back() {
        go_back(uc);
        return true;
    }
    if let Some(n) = thunks::number(rip) {
        uc.gprs.rip = thunks::thunk(n);
        return true;
    }
    let n = rip.wrapping_sub(entries()) as usize / ENTRY;
    match known(n).filter(|k| k.pc != 0) {
        Some(known) => {
            uc.gprs.rip = known.pc;
            true
        }
        None => false,
    }
}
