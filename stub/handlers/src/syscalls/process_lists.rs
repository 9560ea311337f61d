//! Calls that see all processes: they must not see the stub's own task.
//!
//! The first process of a container may wait until it is alone, or end all others; the task ends only after it.

use core::sync::atomic::Ordering::*;

use linux_raw_sys::general as k;
use ulpf_lib::sys::failure::{EPERM, ESRCH};
use ulpf_lib::{AccessKind, sys};

use super::buffers;
use super::call::{Args, EFAULT, raw};
use super::ordinary::ordinary;
use super::scratch::Scratch;
use crate::global::g;
use crate::runtime::frame::UContext;
use crate::runtime::memory;
use crate::runtime::thread::{Call, Current};

/// `<linux/magic.h>`
const PROC_SUPER_MAGIC: i64 = 0x9fa0;
/// `<linux/proc_fs.h>`
const PROC_ROOT_INO: u64 = 1;
/// Bytes of a list that are read at once.
const MOST: u64 = 32 << 10;

/// True if the call reads a folder, which may be the root of a procfs.
pub fn lists(nr: u64) -> bool {
    matches!(nr as u32, k::__NR_getdents | k::__NR_getdents64)
}

/// getdents(2) and getdents64(2): the root of a procfs lists all processes except the stub's task.
pub fn list(t: Current, uc: &mut UContext, nr: u64, a: &Args) -> i64 {
    if !lists_processes(a[0]) {
        return ordinary(t, uc, nr, a);
    }
    let len = u64::from(a[2] as u32).min(MOST);
    let mut s = Scratch::new(t);
    let Some(room) = s.allocate(len) else {
        return ordinary(t, uc, nr, a);
    };
    let read = loop {
        let read = raw(nr, &[a[0], room, len, 0, 0, 0]);
        if read <= 0 {
            return read;
        }
        // SAFETY: room for `len` bytes.
        let entries = unsafe { core::slice::from_raw_parts_mut(room as *mut u8, read as usize) };
        let left = leave_out(entries, name_at(nr), g().stub_tid.load(Relaxed) as u64);
        // An empty result would be the end of the list.
        if left > 0 {
            break left;
        }
    };
    s.keep(a[1], read as u64);
    // SAFETY: as above.
    let entries = unsafe { core::slice::from_raw_parts(room as *const u8, read) };
    if memory::write(a[1], entries) != read {
        return EFAULT;
    }
    let call = Call {
        nr,
        args: *a,
        result: read as i64,
    };
    buffers::hit(t, uc, &call, a[1], read as u64, AccessKind::Write, &s.kept);
    call.result
}

/// kill(2) of all processes. `None` if /proc does not list them: then the kernel makes the call.
pub fn kill(t: Current, signal: u64) -> Option<i64> {
    let root = Root::open()?;
    let mut s = Scratch::new(t);
    let room = s.allocate(MOST)?;
    let own = raw(k::__NR_getpid.into(), &[0; 6]) as u64;
    let stub = g().stub_tid.load(Relaxed) as u64;
    let (mut result, mut count) = (0, 0);
    loop {
        let read = raw(k::__NR_getdents64.into(), &[root.0, room, MOST, 0, 0, 0]);
        if read <= 0 {
            break;
        }
        // SAFETY: room for `MOST` bytes.
        let entries = unsafe { core::slice::from_raw_parts(room as *const u8, read as usize) };
        for number in numbers(entries, name_at(k::__NR_getdents64.into())) {
            if number <= 1 || number == own || number == stub {
                continue;
            }
            // Counted as in the kernel's kill_something_info.
            match raw(k::__NR_kill.into(), &[number, signal, 0, 0, 0, 0]) {
                ESRCH => {}
                EPERM => count += 1,
                other => (result, count) = (other, count + 1),
            }
        }
    }
    Some(if count == 0 { ESRCH } else { result })
}

/// The root of /proc, if it belongs to the program's own namespace.
struct Root(u64);

impl Root {
    fn open() -> Option<Root> {
        let flags = k::O_RDONLY | k::O_CLOEXEC | k::O_DIRECTORY;
        // SAFETY: a NUL-terminated path.
        let fd = unsafe { sys!(k::__NR_openat, -100i64, c"/proc".as_ptr(), flags, 0) };
        let root = Root(fd.ok()?);
        lists_processes(root.0).then_some(root)
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        // SAFETY: our own descriptor.
        let _ = unsafe { sys!(k::__NR_close, self.0) };
    }
}

/// True if this is the root of a procfs with the process numbers of the program's own namespace.
fn lists_processes(fd: u64) -> bool {
    let mut system = core::mem::MaybeUninit::<k::statfs>::zeroed();
    let mut file = core::mem::MaybeUninit::<k::stat>::zeroed();
    // SAFETY: room for both, of which zeros are valid values.
    let (of_proc, is_root) = unsafe {
        let of_proc = sys!(k::__NR_fstatfs, fd as i32, system.as_mut_ptr()).is_ok()
            && system.assume_init().f_type == PROC_SUPER_MAGIC;
        let has_status = of_proc && sys!(k::__NR_fstat, fd as i32, file.as_mut_ptr()).is_ok();
        (
            of_proc,
            has_status && file.assume_init().st_ino == PROC_ROOT_INO,
        )
    };
    of_proc && is_root && knows_us(fd)
}

/// True if its link `self` is our number.
fn knows_us(fd: u64) -> bool {
    let mut name = [0u8; 16];
    // SAFETY: a NUL-terminated path, and room for the result.
    let read = unsafe {
        sys!(
            k::__NR_readlinkat,
            fd as i32,
            c"self".as_ptr(),
            name.as_mut_ptr(),
            name.len() - 1
        )
    };
    let own = raw(k::__NR_getpid.into(), &[0; 6]) as u64;
    read.is_ok() && number(&name) == Some(own)
}

/// Offset of the name in struct linux_dirent and struct linux_dirent64. The record's length is before it, at 16.
fn name_at(nr: u64) -> usize {
    if nr as u32 == k::__NR_getdents {
        18
    } else {
        19
    }
}

/// The number, if the name is one.
fn number(name: &[u8]) -> Option<u64> {
    let digits = name.iter().take_while(|b| **b != 0);
    let mut value = None;
    for b in digits {
        if !b.is_ascii_digit() {
            return None;
        }
        value = Some(value.unwrap_or(0u64).wrapping_mul(10) + u64::from(b - b'0'));
    }
    value
}

/// The length of the first record.
fn first(entries: &[u8]) -> Option<usize> {
    let len = u16::from_ne_bytes(entries.get(16..18)?.try_into().ok()?);
    (len > 0 && usize::from(len) <= entries.len()).then_some(len.into())
}

fn numbers(mut entries: &[u8], name_at: usize) -> impl Iterator<Item = u64> + '_ {
    core::iter::from_fn(move || {
        let (record, rest) = entries.split_at_checked(first(entries)?)?;
        entries = rest;
        Some(record.get(name_at..).and_then(number))
    })
    .flatten()
}

/// Removes the record whose name is this number. Returns the bytes left.
fn leave_out(entries: &mut [u8], name_at: usize, which: u64) -> usize {
    let mut at = 0;
    while let Some(len) = entries.get(at..).and_then(first) {
        let end = at + len;
        if entries.get(at + name_at..end).and_then(number) == Some(which) {
            entries.copy_within(end.., at);
            return entries.len() - len;
        }
        at = end;
    }
    entries.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(name: &str, name_at: usize) -> Vec<u8> {
        let len = (name_at + name.len() + 1).next_multiple_of(8);
        let mut bytes = vec![0; len];
        bytes[16..18].copy_from_slice(&(len as u16).to_ne_bytes());
        bytes[name_at..name_at + name.len()].copy_from_slice(name.as_bytes());
        bytes
    }

    #[test]
    fn one_is_left_out() {
        for name_at in [18, 19] {
            let list = |names: &[&str]| -> Vec<u8> {
                names.iter().flat_map(|n| record(n, name_at)).collect()
            };
            for names in [["7", "self", "12"], ["12", "7", "x7"], ["7x", "70", "7"]] {
                let mut entries = list(&names);
                let left = leave_out(&mut entries, name_at, 7);
                let others: Vec<_> = names.into_iter().filter(|n| *n != "7").collect();
                assert_eq!(entries[..left], list(&others));
                let seen: Vec<_> = numbers(&entries[..left], name_at).collect();
                let right: Vec<u64> = others.iter().filter_map(|n| n.parse().ok()).collect();
                assert_eq!(seen, right);
            }
            let mut alone = list(&["7"]);
            assert_eq!(leave_out(&mut alone, name_at, 7), 0);
            let mut none = list(&["8"]);
            assert_eq!(leave_out(&mut none, name_at, 7), none.len());
        }
    }
}
