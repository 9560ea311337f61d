//! A signal is about to end the program: notes the place in the shared area, for the command that sees it die. Called
//! in handlers: no allocation, no lock, nothing that can fail.

use core::sync::atomic::Ordering::*;

use linux_raw_sys::general as k;
use ulpf_engine::cpu::Gprs;
use ulpf_lib::last_writer::Site;
use ulpf_lib::ring::{Crash, MAX_FRAMES};

use crate::global::g;
use crate::last_writer;
use crate::origin;
use crate::runtime::thread::Current;
use crate::signals::kernel::{default_is_ignore, default_is_stop, is_default};
use crate::signals::numbers::{SIGABRT, SIGBUS, SIGSEGV, SIGSTOP};
use crate::unwind;

/// Notes a signal whose default action ends the program now. `address` is the one that could not be accessed.
pub fn note(t: Current, gprs: &Gprs, sig: i32, pc: u64, address: Option<u64>) {
    let Some(h) = g().header() else { return };
    let crash = &h.crash;
    // Two threads may die at the same time: the reader checks that the record is whole.
    crash.signal.store(0, SeqCst);
    let mut frames = [0; MAX_FRAMES];
    let n = unwind::at_death(t, gprs, &mut frames);
    for (to, from) in crash.callers.iter().zip(frames) {
        to.store(from, Relaxed);
    }
    crash.frames.store(n as u32, Relaxed);
    crash.tid.store(t.tid() as u32, Relaxed);
    crash.pc.store(pc, Relaxed);
    crash.has_address.store(address.is_some().into(), Relaxed);
    crash.address.store(address.unwrap_or(0), Relaxed);
    note_origin(crash, gprs, (sig, pc));
    // SAFETY: reads the time-stamp counter.
    let now = unsafe { core::arch::x86_64::_rdtsc() };
    crash.time.store(now, Relaxed);
    crash.signal.store(sig as u32, SeqCst);
}

/// Notes the place of the pointer that led to the signal, and the last writer of that place.
fn note_origin(crash: &Crash, gprs: &Gprs, (sig, pc): (i32, u64)) {
    let found = last_writer::tables().and_then(|_| match sig {
        SIGABRT => origin::of_header(),
        SIGSEGV | SIGBUS => origin::of(gprs, pc),
        _ => None,
    });
    crash.source.store(found.map_or(0, |o| o.place), Relaxed);
    crash.pointer.store(found.map_or(0, |o| o.pointer), Relaxed);
    let writer = found.and_then(|o| last_writer::of(o.place));
    let site = writer.and_then(last_writer::site_of);
    let stamp = writer.and_then(last_writer::stamp_of);
    crash.writer.store(site.map_or(0, Site::word), Relaxed);
    let (tid, since) = stamp.unwrap_or_default();
    crash.writer_tid.store(tid, Relaxed);
    crash.writer_since.store(since, Relaxed);
}

/// Notes a system call by which the program sends itself a deadly signal, as abort(3) does.
pub fn look_at_call(t: Current, gprs: &Gprs, nr: u64, a: &[u64; 6]) {
    let (to, sig) = match nr as u32 {
        k::__NR_tgkill => (a[1], a[2]),
        k::__NR_tkill => (a[0], a[1]),
        k::__NR_kill => (a[0], a[1]),
        _ => return,
    };
    let own = to == t.tid() as u64 || to == t.tgid() as u64;
    let sig = sig as i32;
    let ends = (1..=31).contains(&sig)
        && is_default(t, sig)
        && !default_is_ignore(sig)
        && !default_is_stop(sig)
        && sig != SIGSTOP;
    if own && ends {
        note(t, gprs, sig, gprs.rip.wrapping_sub(2), None);
    }
}
