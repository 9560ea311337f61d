//! What stands before the program's calls of functions that copy (`overlaps.rs`): far enough apart, they go on at once.
//!
//! A thunk changes r11 and flags, which belong to nobody at the beginning of a function; so whoever is interrupted in one is
//! at its beginning again.

use core::arch::global_asm;
use core::cell::UnsafeCell;

/// Thunks for functions that are told how many bytes, and for those of strings; of all files together.
pub const MOST: usize = 64;
pub const HALF: usize = MOST / 2;
/// Bytes of a thunk.
const THUNK: usize = 64;
/// Strings that are farther apart are taken for shorter than that.
pub const FAR: usize = 64 << 10;

/// Where a thunk leads: to the function, and to the look before it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Way {
    pub function: u64,
    pub look: u64,
}

#[repr(transparent)]
pub struct Ways(UnsafeCell<[Way; MOST]>);

// SAFETY: written by the stub's task at rest.
unsafe impl Sync for Ways {}

#[unsafe(no_mangle)]
static ulpf_check_ways: Ways = Ways(UnsafeCell::new(
    [Way {
        function: 0,
        look: 0,
    }; MOST],
));

global_asm!(
    ".text",
    ".p2align 6",
    ".globl ulpf_check_thunks",
    "ulpf_check_thunks:",
    ".set ulpf_check_way, 0",
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
    "jmp qword ptr [rip + ulpf_check_ways + ulpf_check_way + 8]",
    "3:",
    "jmp qword ptr [rip + ulpf_check_ways + ulpf_check_way]",
    ".set ulpf_check_way, ulpf_check_way + {way}",
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
    "jmp qword ptr [rip + ulpf_check_ways + ulpf_check_way + 8]",
    "3:",
    "jmp qword ptr [rip + ulpf_check_ways + ulpf_check_way]",
    ".set ulpf_check_way, ulpf_check_way + {way}",
    ".endr",
    ".p2align 6",
    half = const HALF,
    way = const size_of::<Way>(),
    far = const FAR,
);

unsafe extern "C" {
    fn ulpf_check_thunks();
}

fn thunks() -> u64 {
    ulpf_check_thunks as *const () as u64
}

/// Where thunk `n` begins.
pub fn thunk(n: usize) -> u64 {
    thunks() + (n * THUNK) as u64
}

/// Which thunk it is in.
pub fn number(at: u64) -> Option<usize> {
    let n = at.wrapping_sub(thunks()) as usize / THUNK;
    (n < MOST).then_some(n)
}

/// The function that thunk `n` leads to; 0: it is free.
pub fn leads_to(n: usize) -> u64 {
    // SAFETY: written at rest.
    let ways = unsafe { &*ulpf_check_ways.0.get() };
    ways.get(n).map_or(0, |way| way.function)
}

/// By the stub's task, at rest.
pub fn lead(n: usize, to: Way) {
    // SAFETY: nobody executes a thunk while the world rests.
    let ways = unsafe { &mut *ulpf_check_ways.0.get() };
    if let Some(way) = ways.get_mut(n) {
        *way = to;
    }
}
