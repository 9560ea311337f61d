//! Our place: the address range of our own mappings in a program, and the list of them.
//!
//! ```text
//!  0x7e80…                                      0x7ef0…
//!  ┌──────────────┬───────┬────────┬────────┬────────┐
//!  │              │ image │ memory │ behind │        │  below what the kernel hands out,
//!  └──────────────┴───────┴────────┴────────┴────────┘  where sanitizers accept mappings
//!                 ▲ base: random, unless the program's own addresses are not
//! ```
//! The place is away from the areas that the kernel hands out (top down below the stack, heap above the program). So the
//! program's own addresses stay what they would be without us, and memory of ours is never the neighbour of a watched
//! page. The base follows from the bytes that the kernel gives to each program (AT_RANDOM), so that a stub and `libulpf`
//! in one process agree on it.
//!
//! The kernel hands out addresses from 0x7efb… on, downwards, with a stack limit of 8 MiB and 28 random bits. A larger
//! limit or more bits (vm.mmap_rnd_bits) let the program's files lie here, and a program may have reserved these addresses
//! before a stub comes (InnoDB reserves 8 TiB). Then the stub takes the middle of the widest stretch that is free
//! ([`base_within`]).
//!
//! **The list.** Every mapping that is made with [`map`] or passed to [`add`] is in a list, so that a forked child and a
//! detach can remove it ([`each`]). Mappings that may exist in thousands (records of threads, windows and tables of the
//! guards) have lists of their own.
#![allow(unsafe_code)]

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering::*};

use linux_raw_sys::general::*;

use crate::sys;
use crate::sys::Errno;

/// The lowest base, and the end of the highest place with what lies behind it.
const LOWEST: u64 = 0x7e80_0000_0000;
const HIGHEST: u64 = 0x7ef0_0000_0000;
/// Bytes for the stub's image, and behind it those for all other memory.
const IMAGE_LEN: u64 = 4 << 30;
/// Bytes of address space for all memory of ours but the stub's image.
pub const MEMORY_LEN: u64 = 192 << 30;
const GRAIN: u64 = 1 << 16;

static BASE: AtomicU64 = AtomicU64::new(LOWEST);
static NEXT: AtomicU64 = AtomicU64::new(0);

/// The base for a program with these bytes at AT_RANDOM; `None` if its addresses are not random (personality(2),
/// ADDR_NO_RANDOMIZE; vm.randomize_va_space).
pub fn base_for(random: Option<[u8; 16]>) -> u64 {
    const BASES: u64 = (HIGHEST - LOWEST - WHOLE_LEN) / GRAIN;
    let Some(bytes) = random else { return LOWEST };
    // The C library derives its secrets from these bytes: 22 bits of a mixture of all of them disclose none.
    let bytes = u128::from_le_bytes(bytes);
    let mut mixed = 0u64;
    for half in [bytes as u64, (bytes >> 64) as u64] {
        mixed = (mixed ^ half).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^= mixed >> 29;
        mixed = mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^= mixed >> 32;
    }
    LOWEST + mixed % BASES * GRAIN
}

/// Address space that [`all`] and what lies behind it take at most ([`map_sparse_behind`]).
pub const WHOLE_LEN: u64 = IMAGE_LEN + MEMORY_LEN + (128 << 30);

/// The base in the middle of `gap`, for a program whose addresses from [`base_for`] on are taken; `None` without enough
/// room.
pub fn base_within(gap: Range<u64>) -> Option<u64> {
    let room = (gap.end.saturating_sub(gap.start)).checked_sub(WHOLE_LEN)?;
    Some((gap.start + room / 2) & !(GRAIN - 1))
}

/// Sets the base. To be called before the first mapping of ours in this process.
pub fn settle(base: u64) {
    BASE.store(base, Relaxed);
}

/// Address range of a stub's image for this base.
pub fn of_images(base: u64) -> Range<u64> {
    base..base + IMAGE_LEN
}

/// Address range of all other memory for this base.
pub fn of_memory(base: u64) -> Range<u64> {
    base + IMAGE_LEN..base + IMAGE_LEN + MEMORY_LEN
}

/// Images and memory of this process.
pub fn all() -> Range<u64> {
    let base = BASE.load(Relaxed);
    base..base + IMAGE_LEN + MEMORY_LEN
}

/// Range of this process's memory. Memory outside was mapped when no hint was left (see [`hint`]).
#[inline]
pub fn memory() -> Range<u64> {
    of_memory(BASE.load(Relaxed))
}

/// Makes `addr` the first hint, if it lies in our place.
pub fn begin_at(addr: u64) {
    let at = addr.wrapping_sub(memory().start);
    NEXT.store(if at < MEMORY_LEN { at } else { 0 }, Relaxed);
}

/// A hint for mmap(2): an address in our place for a mapping of `len` bytes, a new one each time. The kernel ignores a
/// hint that is taken and chooses among the program's own addresses.
pub fn hint(len: u64) -> u64 {
    let room = len.saturating_add(GRAIN) & !(GRAIN - 1);
    let at = NEXT.fetch_add(room, Relaxed) % MEMORY_LEN;
    memory().start + if room > MEMORY_LEN - at { 0 } else { at }
}

// ---- outside of our place ------------------------------------------------------------------------

const MOST_OUTSIDE: usize = 1024;

static OUTSIDE: [Entry; MOST_OUTSIDE] = [const { Entry::new() }; MOST_OUTSIDE];

/// Records memory of ours that the kernel has placed among the program's, because our place was full or taken. Guards
/// leave it alone. (Independent of the list of mappings.)
pub fn note_outside(start: u64, len: u64) {
    if !all().contains(&start) {
        put(&OUTSIDE, start, len);
    }
}

/// Removes the memory at `start` from the list of [`note_outside`].
pub fn forget_outside(start: u64) {
    take(&OUTSIDE, start);
}

/// Memory recorded by [`note_outside`]: (start, length). Only while no other thread changes it.
pub fn outside() -> impl Iterator<Item = (u64, u64)> {
    entries(&OUTSIDE)
}

// ---- the list ------------------------------------------------------------------------------------

const MOST: usize = 2048;

struct Entry {
    start: AtomicU64,
    len: AtomicU64,
}

static LIST: [Entry; MOST] = [const { Entry::new() }; MOST];

impl Entry {
    const fn new() -> Entry {
        Entry {
            start: AtomicU64::new(0),
            len: AtomicU64::new(0),
        }
    }
}

fn put(list: &[Entry], start: u64, len: u64) {
    for entry in list {
        if entry.start.load(Relaxed) == 0
            && entry
                .start
                .compare_exchange(0, start, AcqRel, Relaxed)
                .is_ok()
        {
            entry.len.store(len, Release);
            return;
        }
    }
}

fn take(list: &[Entry], start: u64) {
    for entry in list {
        if entry.start.load(Relaxed) == start {
            entry.len.store(0, Relaxed);
            entry.start.store(0, Release);
            return;
        }
    }
}

fn entries(list: &'static [Entry]) -> impl Iterator<Item = (u64, u64)> {
    list.iter()
        .map(|e| (e.start.load(Acquire), e.len.load(Acquire)))
        .filter(|&(start, len)| start != 0 && len != 0)
}

/// Puts a mapping of ours on the list. (If the list is full, the mapping stays in forked children and after a detach, as
/// private memory.)
pub fn add(start: u64, len: u64) {
    put(&LIST, start, len);
}

/// Mappings on the list: (start, length). Only while no other thread changes it.
pub fn each() -> impl Iterator<Item = (u64, u64)> {
    entries(&LIST)
}

/// Whether `addr` is in a mapping on the list.
pub fn has(addr: u64) -> bool {
    each().any(|(start, len)| addr.wrapping_sub(start) < len)
}

/// Processes that have a mapping after fork(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AfterFork {
    /// Parent and child: a copy if it is private, else both the same memory.
    Both,
    /// The parent alone: the child has nothing there.
    Parent,
}

/// A new mapping of ours at the next hint, on the list.
///
/// # Errors
/// mmap(2)'s; also madvise(2)'s, if the child of a fork would otherwise have the mapping.
pub fn map(len: u64, prot: u32, flags: u32, fd: i64, who: AfterFork) -> Result<u64, Errno> {
    map_at(hint(len), len, (prot, flags, fd), who)
}

fn map_at(
    hint: u64,
    len: u64,
    (prot, flags, fd): (u32, u32, i64),
    who: AfterFork,
) -> Result<u64, Errno> {
    // SAFETY: without MAP_FIXED no existing mapping is replaced.
    let at = unsafe { sys!(__NR_mmap, hint, len, prot, flags, fd, 0) }?;
    add(at, len);
    note_outside(at, len);
    if who == AfterFork::Parent
        && let Err(e) = not_for_children(at, len)
    {
        unmap(at, len);
        return Err(e);
    }
    Ok(at)
}

/// Private zeroed memory, much larger than its used part, which forked children also have. mlockall(MCL_FUTURE) of the
/// program, huge pages and core dumps do not fill it. While it is inaccessible mlockall cannot fill it; munlock(2)
/// prevents it later. MAP_GROWSDOWN excludes it from RLIMIT_DATA (`is_data_mapping` in Linux's mm/internal.h): these
/// tables alone would exceed any such limit, and the program could map nothing more.
///
/// # Errors
/// mmap(2)'s and mprotect(2)'s.
pub fn map_sparse(len: u64) -> Result<u64, Errno> {
    map_sparse_at(hint(len), len)
}

/// As [`map_sparse`], behind our place, if nothing is there: for a table that would leave too little of it.
///
/// # Errors
/// As [`map_sparse`]'s.
pub fn map_sparse_behind(len: u64) -> Result<u64, Errno> {
    map_sparse_at(all().end, len)
}

/// As [`map_sparse`], before our place, if nothing is there.
///
/// # Errors
/// As [`map_sparse`]'s.
pub fn map_sparse_before(len: u64) -> Result<u64, Errno> {
    map_sparse_at(
        all().start.saturating_sub(len + (1 << 30)) & !(GRAIN - 1),
        len,
    )
}

fn map_sparse_at(hint: u64, len: u64) -> Result<u64, Errno> {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_GROWSDOWN;
    let at = map_at(hint, len, (PROT_NONE, flags, -1), AfterFork::Both)?;
    // SAFETY: about our own mapping, to which no reference exists yet.
    let opened = unsafe {
        let _ = sys!(__NR_munlock, at, len);
        let _ = sys!(__NR_madvise, at, len, MADV_NOHUGEPAGE);
        not_dumped(at, len);
        sys!(__NR_mprotect, at, len, PROT_READ | PROT_WRITE)
    };
    opened.map(|_| at).inspect_err(|_| unmap(at, len))
}

/// Excludes this memory of ours from core dumps of the program: much of it is not written to yet, and a dump needs none
/// of it.
pub fn not_dumped(at: u64, len: u64) {
    // SAFETY: advice, which changes no memory.
    let _ = unsafe { sys!(__NR_madvise, at, len, MADV_DONTDUMP) };
}

/// Bytes of the pages that [`huge`] asks for.
pub const HUGE: u64 = 2 << 20;

/// Allows pages of [`HUGE`] bytes in this part of [`map_sparse`]'s memory, which is used densely.
pub fn huge(at: u64, len: u64) {
    let (start, end) = (at.next_multiple_of(HUGE), (at + len) & !(HUGE - 1));
    if start < end {
        // SAFETY: advice about our own mapping.
        let _ = unsafe { sys!(__NR_madvise, start, end - start, MADV_HUGEPAGE) };
    }
}

/// Makes whole pages of a table of ours read as zeros again, and frees them.
pub fn zero(at: u64, len: u64) {
    // SAFETY: private anonymous memory of ours, made of atomics for which zero is a value.
    let _ = unsafe { sys!(__NR_madvise, at, len, MADV_DONTNEED) };
}

/// Unmaps a mapping and removes it from the list.
pub fn unmap(at: u64, len: u64) {
    take(&LIST, at);
    forget_outside(at);
    // SAFETY: our own mapping, which is no longer in use.
    let _ = unsafe { sys!(__NR_munmap, at, len) };
}

/// Keeps `[at, at + len)` from the child of a fork.
///
/// # Errors
/// madvise(2)'s.
pub fn not_for_children(at: u64, len: u64) -> Result<(), Errno> {
    // SAFETY: changes no memory of this process.
    unsafe { sys!(__NR_madvise, at, len, MADV_DONTFORK) }.map(drop)
}

/// Two views of the same new memory, one writable and the other executable. Only this process has them; forked children
/// have neither.
///
/// # Errors
/// The kernel's: no memory, or a security policy (SELinux execmem, a seccomp filter).
pub fn map_code(len: u64) -> Result<(u64, u64), Errno> {
    let (rw, rx) = code_file(len).and_then(views)?;
    not_dumped(rw, len);
    not_dumped(rx, len);
    Ok((rw, rx))
}

struct CodeFile {
    fd: i64,
    len: u64,
}

impl Drop for CodeFile {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours alone.
        let _ = unsafe { sys!(__NR_close, self.fd) };
    }
}

fn code_file(len: u64) -> Result<CodeFile, Errno> {
    const NAME: &core::ffi::CStr = c"ulpf-code";
    let create = |flags: u32| {
        // SAFETY: a C string.
        unsafe { sys!(__NR_memfd_create, NAME.as_ptr(), flags) }
    };
    // The file itself is not executable (vm.memfd_noexec), though its memory is code. Linux before 6.3 lacks the flag.
    let fd = create(MFD_CLOEXEC | MFD_NOEXEC_SEAL).or_else(|_| create(MFD_CLOEXEC))?;
    let file = CodeFile { fd: fd as i64, len };
    // SAFETY: our own file.
    unsafe { sys!(__NR_ftruncate, file.fd, len) }?;
    Ok(file)
}

fn views(file: CodeFile) -> Result<(u64, u64), Errno> {
    let view = |prot| map(file.len, prot, MAP_SHARED, file.fd, AfterFork::Parent);
    let rw = view(PROT_READ | PROT_WRITE)?;
    let rx = view(PROT_READ | PROT_EXEC).inspect_err(|_| unmap(rw, file.len))?;
    Ok((rw, rx))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bases_lie_in_the_region_and_differ() {
        let mut seen = alloc::collections::BTreeSet::new();
        for n in 0..1000u128 {
            let base = base_for(Some(n.to_le_bytes()));
            assert!(base >= LOWEST && base + WHOLE_LEN <= HIGHEST, "{base:#x}");
            assert_eq!(base % GRAIN, 0);
            seen.insert(base);
        }
        assert!(seen.len() > 990, "{}", seen.len());
        assert_eq!(base_for(None), LOWEST);
    }

    #[test]
    fn a_taken_place_is_left_for_the_middle_of_what_is_free() {
        let base = base_within(0x5600_0000_0000..0x7700_0000_0000).unwrap();
        assert!(base > 0x6500_0000_0000 && base + WHOLE_LEN < 0x6800_0000_0000);
        assert_eq!(base % GRAIN, 0);
        assert_eq!(base_within(0..WHOLE_LEN - 1), None);
    }

    #[test]
    fn both_halves_of_the_random_bytes_matter() {
        let with = |at: usize| {
            let mut bytes = [7; 16];
            bytes[at] = 8;
            base_for(Some(bytes))
        };
        assert_ne!(with(0), with(8));
        assert_ne!(with(0), base_for(Some([7; 16])));
    }

    #[test]
    fn the_list_knows_what_was_mapped_and_forgets_what_was_unmapped() {
        let flags = MAP_PRIVATE | MAP_ANONYMOUS;
        let at = map(4096, PROT_READ, flags, -1, AfterFork::Both).unwrap();
        assert!(each().any(|m| m == (at, 4096)));
        unmap(at, 4096);
        assert!(each().all(|m| m.0 != at));
    }

    #[test]
    fn code_is_written_through_one_view_and_executed_through_the_other() {
        let (rw, rx) = map_code(4096).unwrap();
        // mov eax, 42; ret
        let code = [0xb8u8, 42, 0, 0, 0, 0xc3];
        // SAFETY: our own page, mapped twice.
        let answer = unsafe {
            core::ptr::copy_nonoverlapping(code.as_ptr(), rw as *mut u8, code.len());
            let f: extern "C" fn() -> i32 = core::mem::transmute(rx as *const u8);
            f()
        };
        assert_eq!(answer, 42);
        unmap(rw, 4096);
        unmap(rx, 4096);
    }
}
