//! rseq(2). A program with restartable sequences is served ([`crate::sequences`]). Other programs go without, as on an
//! older kernel, which glibc and others support: then the page of a thread's own data can be watched.

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

/// cpu_id_start 0, cpu_id -1: the number of the CPU is not known.
const NO_CPU: [u8; 8] = [0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];

/// Answers a thread's rseq(2).
pub fn restartable_sequences(t: Current, uc: &mut UContext, nr: u64, a: &Args) -> i64 {
    let area = &t.sequences;
    // The kernel refuses a second area, and a null address.
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
        _ => raw(nr, a), // undefined flags
    };
    if result != 0 {
        area.set(0, 0, 0);
    }
    result
}

/// Registers the area again that the thread had before we came, and that the command has unregistered, if it is served.
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

/// The C library ends the program if a thread cannot register although its creator could. That happens to a thread that
/// starts while the command attaches (`command/inject/src/rseq.rs` has unregistered its creator since). Such a thread
/// registers before it has a list of robust locks (glibc, nptl/pthread_create.c, `start_thread`). For it, the area gets
/// the value for an unknown CPU, and the call returns success.
fn refuse(area: u64) -> i64 {
    let (mut head, mut len) = (0u64, 0u64);
    // SAFETY: a query about the calling thread; the kernel writes to the two variables.
    let asked = unsafe { sys!(k::__NR_get_robust_list, 0, &raw mut head, &raw mut len) };
    if asked.is_err() || head != 0 {
        return ENOSYS;
    }
    match memory::write(area, &NO_CPU) {
        8 => 0,
        _ => EFAULT,
    }
}
