//! Thunks before the program's calls of copy functions (`overlaps.rs`). Calls with operands far apart continue at once.
//!
//! A thunk changes r11 and flags, which hold no value at the beginning of a function. So a thread that is interrupted
//! in a thunk is put back to its beginning.

use core::arch::global_asm;
use core::cell::UnsafeCell;

/// Limit of thunks in all files together: half of them for functions with a length, half for functions of strings.
pub const MOST: usize = 64;
pub const HALF: usize = MOST / 2;
/// Bytes of a thunk.
const THUNK: usize = 64;
/// Strings farther apart than this are assumed to be shorter.
pub const FAR: usize = 64 << 10;

/// Targets of a thunk: the function, and the check before it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Targets {
    pub function: u64,
    pub look: u64,
}

#[repr(transparent)]
pub struct TargetTable(UnsafeCell<[Targets; MOST]>);

// SAFETY: written by the stub's task with the world stopped.
unsafe impl Sync for TargetTable {}

#[unsafe(no_mangle)]
static ulpf_check_targets: TargetTable = TargetTable(UnsafeCell::new(
    [Targets {
        function: 0,
        look: 0,
    }; MOST],
));

global_asm!(
    ".text",
    ".p2align 6",
    ".globl ulpf_check_thunks",
    "ulpf_check_thunks:",
    ".set ulpf_check_entry, 0",
    ".rept {half}",
    ".p2align 6",
    "mov r11, rdi",
    "sub r11, rsi",
    "jae 2f",
    "neg r11",
    "2:",
    "cmp r11, rdx",
    "jae 3f",
    "cmp byte ptr [rip + ulpf_check_asleep], 0",
    "jne 3f",
    "jmp qword ptr [rip + ulpf_check_targets + ulpf_check_entry + 8]",
    "3:",
    "jmp qword ptr [rip + ulpf_check_targets + ulpf_check_entry]",
    ".set ulpf_check_entry, ulpf_check_entry + {entry}",
    ".endr",
    ".rept {half}",
    ".p2align 6",
    "mov r11, rdi",
    "sub r11, rsi",
    "jae 2f",
    "neg r11",
    "2:",
    "cmp r11, {far}",
    "jae 3f",
    "cmp byte ptr [rip + ulpf_check_asleep], 0",
    "jne 3f",
    "jmp qword ptr [rip + ulpf_check_targets + ulpf_check_entry + 8]",
    "3:",
    "jmp qword ptr [rip + ulpf_check_targets + ulpf_check_entry]",
    ".set ulpf_check_entry, ulpf_check_entry + {entry}",
    ".endr",
    ".p2align 6",
    half = const HALF,
    entry = const size_of::<Targets>(),
    far = const FAR,
);

unsafe extern "C" {
    fn ulpf_check_thunks();
}

fn thunks() -> u64 {
    ulpf_check_thunks as *const () as u64
}

/// Address of thunk `n`.
pub fn thunk(n: usize) -> u64 {
    thunks() + (n * THUNK) as u64
}

/// The number of the thunk that contains `at`.
pub fn number(at: u64) -> Option<usize> {
    let n = at.wrapping_sub(thunks()) as usize / THUNK;
    (n < MOST).then_some(n)
}

/// The function that thunk `n` leads to, or 0 if the thunk is free.
pub fn leads_to(n: usize) -> u64 {
    // SAFETY: written with the world stopped.
    let targets = unsafe { &*ulpf_check_targets.0.get() };
    targets.get(n).map_or(0, |entry| entry.function)
}

/// Sets the targets of thunk `n`. Called by the stub's task with the world stopped.
pub fn lead(n: usize, to: Targets) {
    // SAFETY: no thread executes a thunk while the world is stopped.
    let targets = unsafe { &mut *ulpf_check_targets.0.get() };
    if let Some(entry) = targets.get_mut(n) {
        *entry = to;
    }
}
