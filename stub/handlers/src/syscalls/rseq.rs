//! rseq(2). A program that has restartable sequences is served ([`crate::sections`]). All others go without, as on an
//! older kernel; glibc and others know how: then nothing keeps a watch from the page of a thread's own data.

use core::sync::atomic::Ordering::*;

use linux_raw_sys::general as k;
use ulpf_lib::sys;
use ulpf_lib::sys::failure::EFAULT;

use super::call::{Args, ENOSYS, raw};
use crate::runtime::events::Request;
use crate::runtime::frame::UContext;
use crate::runtime::memory;
use crate::runtime::park::request;
use crate::runtime::sequences::UNREGISTER;
use crate::runtime::thread::Current;

/// cpu_id_start 0, cpu_id -1: no number of a CPU is known.
const NO_CPU: [u8; 8] = [0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];

/// Answers a thread's rseq(2).
pub fn restartable_sequences(t: Current, uc: &mut UContext, nr: u64, a: &Args) -> i64 {
    let area = &t.sequences;
    // The kernel refuses a second area, and none.
    if a[0] == 0 || a[2] & UNREGISTER != 0 || !area.is_empty() {
        let mut args = *a;
        if a[0] != 0 && a[0] == area.at() {
            args[0] = area.known();
        }
        let result = raw(nr, &args);
        if result == 0 {
            area.set(0, 0, 0);
        }
        return result;
    }
    let (at, len, signature) = (a[0], a[1] as u32, a[3] as u32);
    if t.is_programs() {
        request(t, uc, Request::Register { at, len, signature });
    }
    if area.is_empty() {
        return refuse(at);
    }
    let result = match a[2] {
        0 => area.tell(memory::reachable(at)),
        _ => raw(nr, a), // flags that nobody knows
    };
    if result != 0 {
        area.set(0, 0, 0);
    }
    result
}

/// The thread had an area before we came, which the command has unregistered: the same once more, if it is served.
pub fn again(t: Current, uc: &mut UContext) {
    let [at, len, signature] = t.own().area_before.take();
    if at == 0 || t.leaving.load(Relaxed) {
        return;
    }
    let (len, signature) = (len as u32, signature as u32);
    request(t, uc, Request::Register { at, len, signature });
    let area = &t.sequences;
    if !area.is_empty() && area.tell(memory::reachable(at)) != 0 {
        area.set(0, 0, 0);
    }
}

/// The C library ends the program when a thread cannot register whose creator could: one that was on its way while
/// somebody attached (`command/inject/src/rseq.rs` has unregistered its creator since). Such a thread asks first of
/// all, before it has a list of robust locks (glibc, nptl/pthread_create.c, `start_thread`); its area then says that
/// there is no number of a CPU, and the answer is that all is well.
fn refuse(area: u64) -> i64 {
    let (mut head, mut len) = (0u64, 0u64);
    // SAFETY: of the calling thread; the kernel writes to the two variables.
    let asked = unsafe { sys!(k::__NR_get_robust_list, 0, &raw mut head, &raw mut len) };
    if asked.is_err() || head != 0 {
        return ENOSYS;
    }
    match memory::write(area, &NO_CPU) {
        8 => 0,
        _ => EFAULT,
    }
}
