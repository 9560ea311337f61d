//! Information of the kernel about the program in `/proc/PID`. The stub's task shares the program's memory but has a
//! process of its own, so `/proc/self` would be the wrong one.

use crate::files;
use crate::inferior::Inferior;
use alloc::format;
use alloc::vec::Vec;
use core::ptr::NonNull;
use linux_raw_sys::general::{__NR_readlinkat, AT_FDCWD};
use ulpf_lib::sys;
use ulpf_lib::sys::Errno;
#[allow(unused_imports)]
use ulpf_lib::sys::syscall6;
use ulpf_stub_handlers::global::boot_block;

/// More than any file of `/proc` that we read should have; a bound against surprises.
const MAX_FILE: usize = 16 << 20;

/// The whole of `/proc/PID/NAME`.
pub fn read(pid: i32, name: &str) -> Option<Vec<u8>> {
    files::read_up_to(&format!("/proc/{pid}/{name}\0"), MAX_FILE)
}

/// The program's auxiliary vector: `/proc/PID/auxv`, or, where this task may not read that, what the command has read.
pub fn auxiliary_vector(pid: i32) -> Option<Vec<u8>> {
    read(pid, "auxv").or_else(|| {
        let block = NonNull::new(boot_block())?;
        // SAFETY: in the image; the command writes this field before the stub begins.
        #[allow(unsafe_code)]
        let words = unsafe { &(*block.as_ptr()).auxv };
        let (entries, _) = words.as_chunks::<2>();
        let last = entries.iter().position(|entry| entry[0] == 0)?;
        let kept = entries.get(..=last)?.as_flattened().iter();
        Some(kept.flat_map(|word| word.to_ne_bytes()).collect())
    })
}

/// Path of the program's file: the target of `/proc/PID/exe`, or, where this task may not read that, the target when
/// the stub was loaded.
pub fn exe(pid: i32) -> Option<Vec<u8>> {
    link(pid).ok().or_else(|| {
        let block = NonNull::new(boot_block())?;
        // SAFETY: as above.
        #[allow(unsafe_code)]
        let then = unsafe { &(*block.as_ptr()).exe };
        let len = then.iter().position(|b| *b == 0).filter(|len| *len > 0)?;
        then.get(..len).map(<[u8]>::to_vec)
    })
}

fn link(pid: i32) -> Result<Vec<u8>, Errno> {
    let path = format!("/proc/{pid}/exe\0");
    let mut buf = alloc::vec![0; 4096];
    // SAFETY: a NUL-terminated path and a buffer of the length given.
    #[allow(unsafe_code)]
    let n = unsafe {
        sys!(
            __NR_readlinkat,
            AT_FDCWD,
            path.as_ptr(),
            buf.as_mut_ptr(),
            buf.len()
        )
    }?;
    buf.truncate(n as usize);
    Ok(buf)
}

/// The CPU that the thread ran on last.
pub fn core_of(inf: &dyn Inferior, pid: i32, tid: i32) -> Option<u32> {
    inf.core(tid).or_else(|| core_in_stat(pid, tid))
}

/// Field 39 of its `stat`, proc(5).
fn core_in_stat(pid: i32, tid: i32) -> Option<u32> {
    let stat = files::read_short(&format!("/proc/{pid}/task/{tid}/stat\0"))?;
    let after_name = &stat[stat.iter().rposition(|b| *b == b')')? + 1..];
    let field = after_name
        .split(|b| *b == b' ')
        .filter(|f| !f.is_empty())
        .nth(39 - 3)?;
    core::str::from_utf8(field).ok()?.trim().parse().ok()
}
