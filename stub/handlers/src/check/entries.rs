//! How the program's calls of its allocator come here.
//!
//! ```text
//! malloc:  mov r11, entry n; jmp r11 ─▶ entry n: gs:[hit] = KNOWN[n]; jmp gs:[entry] ─▶ ulpf_direct ─▶ called()
//!                                                                                            │
//! the caller  ◀────────────── ret ◀──────────── ulpf_check_return ◀──── ulpf_direct_tail ◀───┘
//! ```
//! The first bytes of each function are a jump, for good; nobody executes what stood there. r11 belongs to nobody at the
//! beginning of a function. Whoever is interrupted in an entry is at the beginning of the function again ([`leave`]), so
//! nobody ever sees one. A thread without its area in gs faults there: it gets one, or, if gs is the program's, the
//! call is served in the fault's handler.

use core::arch::global_asm;
use core::cell::UnsafeCell;
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering::*};

use ulpf_lib::AccessKind;
use ulpf_lib::ring::Area;
use ulpf_stub_tables::patches::Known;

use super::{requests, thunks};
use crate::runtime::frame::UContext;
use crate::runtime::memory;

/// Blocks are served here. Changes at rest, once.
pub static ON: AtomicBool = AtomicBool::new(false);
/// What one of the functions does.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Function {
    /// (size)
    Malloc = 1,
    /// (number, size)
    Calloc,
    /// (block, size)
    Realloc,
    /// (block, number, size)
    Reallocarray,
    /// (block)
    Free,
    /// (alignment, size)
    Memalign,
    /// (where the address goes, alignment, size)
    PosixMemalign,
    /// (size), at a page
    Valloc,
    /// (size), whole pages
    Pvalloc,
    /// (block)
    UsableSize,
    /// (block), of `operator delete`
    Delete,
    /// (block), of `operator delete[]`
    DeleteArray,
    /// (size, …) of `operator new[]` that goes on as `operator new`
    NewArray,
    /// (size, alignment), of an allocator's own `operator new`
    NewAligned,
    /// (to, from, bytes): none of the allocator, as those below; it goes on as itself
    Memcpy,
    /// See above.
    Mempcpy,
    /// (to, from)
    Strcpy,
    /// See above.
    Stpcpy,
    /// See above.
    Strcat,
    /// (to, from, at most)
    Strncpy,
    /// See above.
    Strncat,
}

impl Function {
    /// Does the call go on as what has been called, or as another function?
    pub fn goes_on(self) -> bool {
        self as u8 >= Function::Memcpy as u8 || self == Function::NewArray
    }

    /// Does the call ask for a block, given its first argument, and is about none that there is?
    pub fn allocates(self, first: u64) -> bool {
        use Function::*;
        match self {
            Malloc | Calloc | Memalign | PosixMemalign | Valloc | Pvalloc | NewAligned => true,
            Realloc | Reallocarray => first == 0,
            _ => false,
        }
    }

    /// Is its first argument a block that there is?
    pub fn frees_or_asks(self) -> bool {
        use Function::*;
        matches!(
            self,
            Realloc | Reallocarray | Free | UsableSize | Delete | DeleteArray
        )
    }

    /// Which of `ulpf_lib::ring::found::COPIES`.
    pub fn copies(self) -> Option<u32> {
        (self as u32).checked_sub(Function::Memcpy as u32)
    }
}

/// The functions were the program's before, and its blocks of that time still are: calls that are about such a block go on to
/// the function itself, whose first instructions are elsewhere (`control/own_functions.rs` of the stub's task). Changes at rest.
pub static PASSES: AtomicBool = AtomicBool::new(false);

/// The functions are those of an allocator that gives blocks by other functions, too: calls that are about such a block go on to
/// the function itself, as with [`PASSES`]. Changes at rest.
pub static OTHERS: AtomicBool = AtomicBool::new(false);
/// Such an allocator is to serve the next call for a block: its other functions expect that it has begun.
static BEGINS: AtomicBool = AtomicBool::new(false);

/// By the stub's task, at rest: the functions of such an allocator come here, and those for blocks that there are can go on.
pub fn has_others() {
    OTHERS.store(true, SeqCst);
    BEGINS.store(true, SeqCst);
}

/// Is the allocator itself to serve this call for a block? Once.
#[inline]
pub fn begins_itself() -> bool {
    BEGINS.load(Relaxed) && BEGINS.swap(false, Relaxed)
}

/// Functions of allocators that a program may have, of all its files together.
pub const MOST: usize = 256;
/// Bytes of an entry.
const ENTRY: usize = 64;
/// Bytes of the jump, and of the first one of its two instructions.
pub const JUMP: usize = 13;
const STEP: usize = 10;

/// What [`Area::hit`] points to.
#[repr(transparent)]
pub struct Entries(UnsafeCell<[Known; MOST]>);

// SAFETY: written by the stub's task at rest.
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
    operand: None,
};

#[unsafe(no_mangle)]
static ulpf_check_known: Entries = Entries(UnsafeCell::new([NOBODY; MOST]));
/// The same, for calls that go on to the program's own function: `back` is where that begins now; 0: nowhere.
static PASSED: Entries = Entries(UnsafeCell::new([NOBODY; MOST]));
/// What stood where each function's jump is.
static ORIGINALS: Originals = Originals(UnsafeCell::new([[0; JUMP]; MOST]));

#[repr(transparent)]
struct Originals(UnsafeCell<[[u8; JUMP]; MOST]>);

// SAFETY: written by the stub's task at rest.
unsafe impl Sync for Originals {}

/// Not 0: a forked child.
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
    // SAFETY: written at rest.
    unsafe { &*ulpf_check_known.0.get() }.get(n)
}

/// One more function is to come here: the jump that its code begins with from now on. `on`: where it goes on instead of
/// returning. By the stub's task, at rest.
pub fn add(at: u64, function: Function, on: Option<u64>) -> Option<[u8; JUMP]> {
    let n = (0..MOST).find(|n| known(*n).is_some_and(|k| k.pc == 0 || k.pc == at))?;
    // SAFETY: nobody executes an entry while the world rests.
    let slot = unsafe { (*ulpf_check_known.0.get()).get_mut(n)? };
    *slot = Known {
        pc: at,
        after: on.unwrap_or(way_back()),
        back: on.unwrap_or(way_back()),
        call: function as u8,
        ..NOBODY
    };
    Some(jump(entries() + (n * ENTRY) as u64))
}

/// This is what stands at the function at `at`, which is to begin with its jump. By the stub's task, at rest.
pub fn keep(at: u64, original: [u8; JUMP]) {
    let n = (0..MOST).find(|n| known(*n).is_some_and(|k| k.pc == at));
    // SAFETY: the world rests.
    let place = n.and_then(|n| unsafe { (*ORIGINALS.0.get()).get_mut(n) });
    if let Some(place) = place {
        *place = original;
    }
}

/// What stood where the jump of the function with this number in the table is.
pub fn original(n: usize) -> Option<&'static [u8; JUMP]> {
    // SAFETY: written at rest.
    unsafe { &*ORIGINALS.0.get() }.get(n)
}

fn jump(to: u64) -> [u8; JUMP] {
    let [a, b, c, d, e, f, g, h] = to.to_le_bytes();
    [0x49, 0xbb, a, b, c, d, e, f, g, h, 0x41, 0xff, 0xe3]
}

/// The jump at the beginning of the function at `at`, if it comes here.
pub fn jump_of(at: u64) -> Option<[u8; JUMP]> {
    entry_of(at).map(jump)
}

/// The function that comes here begins at `moved` from now on, for calls that go on to it. By the stub's task, at rest.
pub fn pass(at: u64, moved: u64) {
    let Some(n) = (0..MOST).find(|n| known(*n).is_some_and(|k| k.pc == at)) else {
        return;
    };
    // SAFETY: the world rests.
    let passed = unsafe { (*PASSED.0.get()).get_mut(n) };
    if let (Some(passed), Some(known)) = (passed, known(n)) {
        *passed = Known {
            after: moved,
            back: moved,
            ..*known
        };
    }
}

/// What the tail of a call is told that goes on to the program's own function.
pub fn passed(known: &Known) -> Option<&'static Known> {
    let offset = |of: &Entries| (known as *const Known as u64).wrapping_sub(of.0.get() as u64);
    let n = offset(&ulpf_check_known).min(offset(&PASSED)) as usize / size_of::<Known>();
    own(n).filter(|own| own.back != 0)
}

/// Of the function with this number in the table.
pub fn own(n: usize) -> Option<&'static Known> {
    // SAFETY: written at rest.
    unsafe { &*PASSED.0.get() }.get(n)
}

/// The functions that come here, by their first bytes.
pub fn all() -> impl Iterator<Item = u64> {
    (0..MOST).filter_map(|n| known(n).map(|k| k.pc).filter(|pc| *pc != 0))
}

/// The function in the middle of whose jump `addr` is: no instruction begins there.
pub fn around(addr: u64) -> Option<&'static Known> {
    let inside = |k: &&Known| k.pc != 0 && k.pc < addr && addr < k.pc + JUMP as u64;
    match ON.load(Relaxed) {
        true => (0..MOST)
            .filter_map(known)
            .find(inside)
            .or_else(|| requests::around(addr)),
        false => None,
    }
}

/// The function that a thread has made half of the jump of, in a step.
pub fn begun(pc: u64) -> Option<&'static Known> {
    around(pc)
        .filter(|k| k.pc + STEP as u64 == pc && !requests::is_request(k))
        .or_else(|| requests::stepped(pc))
}

/// What the function that begins at `at` does, if it comes here.
pub fn of(at: u64) -> Option<Function> {
    (0..MOST).find_map(|n| known(n).filter(|k| k.pc == at).and_then(function))
}

/// Where its entry is.
pub fn entry_of(at: u64) -> Option<u64> {
    let n = (0..MOST).find(|n| known(*n).is_some_and(|k| k.pc == at))?;
    Some(entries() + (n * ENTRY) as u64)
}

/// The function at `at` is mapped no more.
pub fn remove(at: u64) {
    for table in [&ulpf_check_known, &PASSED] {
        // SAFETY: by the stub's task, at rest.
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

/// A forked child serves itself.
pub fn fall_asleep() {
    ulpf_check_asleep.store(1, Relaxed);
}

pub fn asleep() -> bool {
    ulpf_check_asleep.load(Relaxed) != 0
}

/// As `ret` does.
pub fn go_back(uc: &mut UContext) {
    if let Some(to) = memory::get::<u64>(uc.gprs.rsp) {
        uc.gprs.rip = to;
        uc.gprs.rsp += 8;
    }
}

/// A thread that is interrupted on its way here, or back, is in its own code.
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
