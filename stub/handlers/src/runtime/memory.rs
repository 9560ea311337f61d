//! Reads and writes the program's memory from inside a handler. The alias bypasses guards, and an unmapped address ends
//! the copy instead of the program.

use linux_raw_sys::general as k;
use ulpf_lib::sys;
use ulpf_lib::{PAGE_SIZE, TargetAddr};

use super::asm::ulpf_copy;
use super::{debug_registers, keys};
use crate::global::{g, tables};

/// The largest piece at `addr` within one page.
fn piece(addr: u64, len: usize) -> usize {
    ((PAGE_SIZE - addr % PAGE_SIZE) as usize).min(len)
}

/// Prefetches the byte at `at`: memory is slower than a few hundred instructions. (It need not be mapped.)
#[inline]
pub fn expect(at: u64) {
    use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: nothing happens but to caches.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at as *const i8) };
}

/// The address by which the byte at `addr` is accessible without a guard, also for the kernel.
pub fn reachable(addr: u64) -> u64 {
    g().alias_of(addr).map_or(addr, |a| a.0)
}

/// Lets the kernel copy, whose accesses do not match our debug registers: reading the watched value in the handler of
/// its trap would trap again. Returns the number of bytes that were not copied.
pub fn by_kernel(nr: u32, ours: u64, theirs: u64, n: usize) -> usize {
    let (ours, theirs) = ([ours, n as u64], [theirs, n as u64]);
    // SAFETY: our own process's memory on both sides; both vectors live until the call is done.
    let copied = unsafe {
        sys!(k::__NR_getpid).and_then(|pid| sys!(nr, pid, ours.as_ptr(), 1, theirs.as_ptr(), 1, 0))
    };
    n - copied.unwrap_or(0) as usize
}

/// Copies from the program; returns how many bytes were readable.
pub fn read(addr: u64, to: &mut [u8]) -> usize {
    let mut done = 0;
    while done < to.len() {
        let at = addr.wrapping_add(done as u64);
        let n = piece(at, to.len() - done);
        let from = reachable(at);
        // SAFETY: the destination is ours, `n` bytes are left of it.
        let to = unsafe { to.as_mut_ptr().add(done) };
        let left = if debug_registers::would_match(from, n as u64, false) {
            by_kernel(k::__NR_process_vm_readv, to as u64, from, n)
        } else {
            // SAFETY: a fault at the source ends the copy.
            unsafe { ulpf_copy(to, from as *const u8, n) }
        };
        done += n - left;
        if left != 0 {
            break;
        }
    }
    done
}

/// As [`read`], but ignores the thread's protection keys (`keys.rs`): for execute-only code, and the bytes of a hit.
pub fn look(addr: u64, to: &mut [u8]) -> usize {
    let n = read(addr, to);
    let rest = addr.wrapping_add(n as u64);
    match to.get_mut(n..) {
        Some(more) if !more.is_empty() => n + keys::with_all(|| read(rest, more)).unwrap_or(0),
        _ => n,
    }
}

/// Reads the program's code, without our edits. Returns as much as can be read.
pub fn code(addr: u64, to: &mut [u8]) -> &mut [u8] {
    let n = look(addr, to);
    let code = to.get_mut(..n).unwrap_or(&mut []);
    tables().edits.hide(addr, code);
    code
}

/// Copies to the program; returns how many bytes were writable.
pub fn write(addr: u64, from: &[u8]) -> usize {
    let mut done = 0;
    while done < from.len() {
        let at = addr.wrapping_add(done as u64);
        let n = piece(at, from.len() - done);
        let to = reachable(at);
        // SAFETY: the source is ours, `n` bytes are left of it.
        let from = unsafe { from.as_ptr().add(done) };
        let left = if debug_registers::would_match(to, n as u64, true) {
            by_kernel(k::__NR_process_vm_writev, from as u64, to, n)
        } else {
            // SAFETY: a fault at the destination ends the copy.
            unsafe { ulpf_copy(to as *mut u8, from, n) }
        };
        if debug_registers::active() {
            debug_registers::written(TargetAddr(at), n as u64, look);
        }
        done += n - left;
        if left != 0 {
            break;
        }
    }
    done
}

/// Reads a plain value.
pub fn get<T: Copy>(addr: u64) -> Option<T> {
    let mut v = core::mem::MaybeUninit::<T>::uninit();
    // SAFETY: the slice covers exactly `v`; T is a kernel structure without invalid patterns.
    let bytes =
        unsafe { core::slice::from_raw_parts_mut(v.as_mut_ptr() as *mut u8, size_of::<T>()) };
    // SAFETY: filled when all bytes were read.
    (read(addr, bytes) == size_of::<T>()).then(|| unsafe { v.assume_init() })
}

/// Writes a plain value.
pub fn put<T: Copy>(addr: u64, v: &T) -> bool {
    // SAFETY: the bytes of a plain structure.
    let bytes = unsafe { core::slice::from_raw_parts(v as *const T as *const u8, size_of::<T>()) };
    write(addr, bytes) == bytes.len()
}

/// Length of the string at `addr` without its NUL; `None` when unreadable or longer than `max`.
pub fn strlen(addr: u64, max: usize) -> Option<usize> {
    let mut buf = [0u8; 256];
    let mut n = 0;
    while n <= max {
        let at = addr.wrapping_add(n as u64);
        let want = piece(at, buf.len());
        let got = read(at, buf.get_mut(..want)?);
        if let Some(i) = buf.iter().take(got).position(|&b| b == 0) {
            return Some(n + i);
        }
        if got < want {
            return None;
        }
        n += got;
    }
    None
}
