//! Generated code of the program, which it may write to. Pages of it with patches are write-protected
//! (`control/generated.rs`). Before the program's write, the page gets its original code back and the protection is
//! removed.

use core::sync::atomic::{AtomicBool, Ordering::*};

use linux_raw_sys::general as k;
use ulpf_engine::exec::FaultInfo;
use ulpf_lib::PAGE_SIZE;
use ulpf_lib::sys;
use ulpf_stub_tables::breakpoints::Collector;

use crate::global::tables;
use crate::runtime::areas::SOME;
use crate::runtime::events::Request;
use crate::runtime::frame::UContext;
use crate::runtime::memory;
use crate::runtime::park::request;
use crate::runtime::thread::Current;
use crate::signals::numbers;
use crate::syscalls::call::Args;

/// Bytes behind a pointer that the kernel usually writes at most; a write farther away fails with EFAULT.
pub const FAR: u64 = 1 << 20;

/// True if a page of `[start, end)` is write-protected by us.
fn closed(start: u64, end: u64) -> bool {
    SOME.load(Relaxed) && tables().patches.closed(start, end).next().is_some()
}

/// Some page has been write-protected.
pub static CLOSED: AtomicBool = AtomicBool::new(false);

/// A store to `at` has faulted. Returns `true` if we had protected the page; it is writable now.
pub fn written(t: Current, uc: &mut UContext, at: u64) -> bool {
    if !CLOSED.load(Relaxed) {
        return false;
    }
    let found = tables().patches.code_pages(at, at.saturating_add(1)).next();
    let closed = found.map(|(_, page)| page.closed);
    if closed == Some(true) {
        open(t, uc, at, at + 1);
    }
    // Another thread may have opened the page first, and may even have made us forget it since the fault.
    closed.is_some() || is_writable(at)
}

/// True if the program may write to this byte. Asks the kernel to add 0 to its word.
fn is_writable(at: u64) -> bool {
    const ADD_NOTHING: u32 = k::FUTEX_OP_ADD << 28;
    let word = at & !3;
    // SAFETY: the word keeps its value. (No thread waits on a word of code.)
    let done = unsafe {
        sys!(
            k::__NR_futex,
            word,
            k::FUTEX_WAKE_OP | k::FUTEX_PRIVATE_FLAG,
            0,
            0,
            word,
            ADD_NOTHING
        )
    };
    done.is_ok()
}

/// As [`written`], for a store that was made for the program.
pub fn met(t: Current, uc: &mut UContext, what: &FaultInfo) -> bool {
    const WRITE: u64 = 2;
    what.signo == numbers::SIGSEGV && what.error & WRITE != 0 && written(t, uc, what.addr)
}

/// The kernel may be about to write to the target of an argument.
pub fn passed(t: Current, uc: &mut UContext, a: &Args) {
    if !SOME.load(Relaxed) || tables().patches.written.is_empty() {
        return;
    }
    for at in a {
        let end = at.saturating_add(FAR);
        if closed(*at, end) {
            open(t, uc, *at, end);
        }
    }
}

/// A collector that moves generated code begins or has ended on this thread.
pub fn collector_at(t: Current, uc: &mut UContext, what: Option<Collector>) {
    match what {
        None => {}
        Some(Collector::Begins) => {
            // The return address: nothing of the function has been executed.
            let back = memory::get::<u64>(uc.gprs.rsp).unwrap_or(0);
            request(t, uc, Request::CollectorBegins { back });
        }
        Some(Collector::Ends) => {
            let at = uc.gprs.rip;
            request(t, uc, Request::CollectorEnds { at });
        }
    }
}

fn open(t: Current, uc: &mut UContext, start: u64, end: u64) {
    let start = start & !(PAGE_SIZE - 1);
    request(t, uc, Request::CodeWritten { start, end });
}

/// In a forked child, whose code is restored: removes the write protection.
pub fn open_in_child() {
    for (page, prot) in tables().patches.closed(0, u64::MAX) {
        // SAFETY: the protection that the program has given its page.
        let _ = unsafe { sys!(k::__NR_mprotect, page, PAGE_SIZE, u64::from(prot)) };
    }
}
