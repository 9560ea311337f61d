//! A program that watches itself with `libulpf`, while we watch it (`ulpf_lib::library_abi` has a drawing).
//!
//! * **Its faults** are not reported to the debugger as signals: a fault on a page that the library guards is no error
//!   of the program. They go to its handler at once, and a debugger's step continues behind it.
//! * **Accesses that it performs** in the program's stead, it reports to us. They are counted and logged at once. A
//!   stop waits until the thread is back in the program, where its PC is behind the instruction, as it would be without
//!   the library.
//! * **Its own calls**, while it changes guards, move memory without changing the contents: no hits.

use core::cell::Cell;
use core::sync::atomic::Ordering::*;

use ulpf_lib::guard::Fault;
use ulpf_lib::library_abi::{
    AccessRecord, AccessReport, CONCERNS, COPY, HELLO, RUNS, Run, SHARED, TELL,
};
use ulpf_lib::sys::failure::{EFAULT, EINVAL};
use ulpf_lib::{AccessKind, PAGE_SIZE, TargetAddr};

use crate::cause::Cause;
use crate::global::{g, tables};
use crate::hits::hits;
use crate::runtime::debug_registers;
use crate::runtime::events::Events;
use crate::runtime::frame::{SigInfo, UContext};
use crate::runtime::library_link::abi_table;
use crate::runtime::library_state::Due;
use crate::runtime::memory;
use crate::runtime::park;
use crate::runtime::thread::{Call, Current};
use crate::signals::numbers::{SIGSEGV, SIGTRAP};
use crate::signals::{delivery, kernel};
use crate::syscalls::call::Args;
const SEGV_ACCERR: i32 = 2;
const TRAP_TRACE: i32 = 2;

/// True if the library works for itself on this thread.
pub fn at_work(t: Current) -> bool {
    abi_table().is_some_and(|d| {
        let changer = d.changer.load(SeqCst);
        changer != 0 && changer == park::bases(t).0
    })
}

// ---- its faults ---------------------------------------------------------------------------------

/// The receiver of a signal.
pub enum Whose {
    /// The program, as without the library.
    Program,
    Library,
    /// Neither: the instruction may run again.
    Nobody,
}

pub fn whose(t: Current, uc: &UContext, sig: i32, info: &SigInfo) -> Whose {
    let Some(table) = abi_table().filter(|_| info.by_kernel()) else {
        return Whose::Program;
    };
    match (sig, info.code) {
        (SIGTRAP, TRAP_TRACE) if at_work(t) => Whose::Library,
        (SIGSEGV, SEGV_ACCERR) => {
            const WRITE: u64 = 2;
            let kind = match uc.err & WRITE {
                0 => AccessKind::Read,
                _ => AccessKind::Write,
            };
            let verdict = table.pages.fault(TargetAddr(info.addr()), kind);
            if verdict == Fault::Guarded || table.changer.load(SeqCst) != 0 {
                return Whose::Library;
            }
            // It may have been the library's fault a moment ago. The library, too, lets such a fault occur once more.
            let now = (uc.gprs.rip, info.addr(), table.generation.load(SeqCst));
            let strange = &t.own().library.strange;
            let times = match strange.get() {
                (pc, addr, generation, times) if (pc, addr, generation) == now => times,
                _ => 0,
            };
            strange.set((now.0, now.1, now.2, times + 1));
            match times {
                0 => Whose::Nobody,
                1 => Whose::Program,
                2 => Whose::Library,
                // The library's handler and the debugger have had it: now it ends the program.
                _ if kernel::is_default(t, SIGSEGV) => Whose::Library,
                _ => {
                    strange.set((now.0, now.1, now.2, 1));
                    Whose::Nobody
                }
            }
        }
        _ => Whose::Program,
    }
}

/// The debugger's step that continues behind the library's handler, unless the debugger has given another order since.
fn across(t: Current) -> Option<(u64, u64)> {
    if t.ordered.load(Relaxed) {
        t.ordered.store(false, Relaxed);
        t.own().library.across.set(None);
    }
    t.own().library.across.get()
}

/// Sends the thread into the library's handler, without a report to the debugger.
pub fn deliver(t: Current, uc: &mut UContext, sig: i32, info: &SigInfo) {
    let i = t.own();
    let pc = uc.gprs.rip;
    let stepping = t.stepping.swap(false, Relaxed);
    if stepping {
        park::set_tf(uc, false);
    }
    if !delivery::deliver(t, uc, sig, info) {
        t.stepping.store(stepping, Relaxed);
        return park::set_tf(uc, stepping);
    }
    let context = uc.gprs.rdx;
    match across(t) {
        Some((0, from)) => i.library.across.set(Some((context, from))),
        _ if stepping => i.library.across.set(Some((context, pc))),
        _ => {}
    }
}

/// A system call of the thread has returned; `returned`: from the handler with this frame. Does the work that waits for
/// it. Returns `true` if the debugger's step continues.
pub fn after_call(t: Current, uc: &mut UContext, returned: Option<u64>) -> bool {
    let i = t.own();
    while let Some(last) = i.library.waiting.get().checked_sub(1)
        && let Some(due) = i.library.due.get(last).map(Cell::get)
    {
        let inside = (due.stack[0]..due.stack[1]).contains(&uc.gprs.rsp);
        if inside && (due.context == 0 || returned != Some(due.context)) {
            break;
        }
        i.library.waiting.set(last);
        due.events.iter().for_each(|e| i.report(e));
        i.call.set(due.call.or(i.call.get()));
    }
    let Some((frame, from)) = across(t) else {
        return false;
    };
    if frame == 0 || returned != Some(frame) {
        return false;
    }
    if at_work(t) {
        // The library makes a step, and is notified of its end.
        i.library.across.set(Some((0, from)));
        return false;
    }
    i.library.across.set(None);
    if !i.pending.get().is_empty() {
        return false;
    }
    t.stepping.store(true, Relaxed);
    let yet_to_be_made = uc.gprs.rip == from;
    if yet_to_be_made {
        park::set_tf(uc, true);
    }
    yet_to_be_made
}

// ---- its requests -------------------------------------------------------------------------------

/// prctl(CALL, …).
pub fn call(t: Current, uc: &mut UContext, a: &Args) -> i64 {
    let [_, what, a, b, c, _] = *a;
    match what {
        HELLO => 0,
        TELL => report_access(t, uc, a),
        COPY => copy(a, b, c),
        CONCERNS => concerns(a, b, kind(c)).into(),
        RUNS => runs(a, b, c),
        _ => EINVAL,
    }
}

fn kind(number: u64) -> AccessKind {
    match number {
        1 => AccessKind::Read,
        2 => AccessKind::Write,
        _ => AccessKind::ReadWrite,
    }
}

fn copy(to: u64, from: u64, len: u64) -> i64 {
    let mut buf = [0u8; 512];
    let mut done = 0;
    while done < len {
        let n = (len - done).min(buf.len() as u64) as usize;
        let Some(part) = buf.get_mut(..n) else { break };
        let got = memory::read(from.wrapping_add(done), part);
        let part = part.get_mut(..got).unwrap_or(&mut []);
        tables().edits.hide(from.wrapping_add(done), part);
        let put = memory::write(to.wrapping_add(done), part);
        done += put as u64;
        if put < n {
            break;
        }
    }
    done as i64
}

fn concerns(addr: u64, len: u64, kind: AccessKind) -> bool {
    let Some(end) = addr.checked_add(len) else {
        return false;
    };
    g().touches(addr, end) && g().guards().in_the_way(TargetAddr(addr), end, kind)
        || debug_registers::any_in(addr, end)
}

fn runs(from: u64, to: u64, room: u64) -> i64 {
    let mut n = 0;
    if !g().guarded() {
        return 0;
    }
    for (start, end) in g().guards().moved_runs_from(from) {
        let mut at = start.max(from);
        while at < end {
            if n == room {
                return n as i64;
            }
            let first = g().page_map.entry(TargetAddr(at));
            let alike = |page: u64| {
                let e = g().page_map.entry(TargetAddr(page));
                (e.prot(), e.shared()) == (first.prot(), first.shared())
            };
            let mut stop = at + PAGE_SIZE;
            while stop < end && alike(stop) {
                stop += PAGE_SIZE;
            }
            let run = Run {
                start: at,
                end: stop,
                flags: u64::from(first.prot()) | if first.shared() { SHARED } else { 0 },
            };
            if !memory::put(to.wrapping_add(n * size_of::<Run>() as u64), &run) {
                return EFAULT;
            }
            n += 1;
            at = stop;
        }
    }
    n as i64
}

/// True if all of it is readable. (It stays so: it is the library's own stack, or its own mapping.)
fn readable(at: u64, len: u64) -> bool {
    let Some(end) = at.checked_add(len) else {
        return false;
    };
    let pages = (at & !(PAGE_SIZE - 1)..end).step_by(PAGE_SIZE as usize);
    pages
        .into_iter()
        .all(|page| memory::get::<u8>(page.max(at)).is_some())
}

fn report_access(t: Current, uc: &mut UContext, at: u64) -> i64 {
    let Some(report) = memory::get::<AccessReport>(at) else {
        return EFAULT;
    };
    let mut gprs = uc.gprs;
    if report.context != 0 {
        match memory::get::<UContext>(report.context) {
            Some(theirs) => gprs = theirs.gprs,
            None => return EFAULT,
        }
    }
    let call = (report.nr >= 0).then_some(Call {
        nr: report.nr as u64,
        args: report.args,
        result: report.result,
    });
    let mut events = Events::none();
    let mut old = report.old;
    for n in 0..report.count {
        let Some(made) = memory::get::<AccessRecord>(
            report
                .made
                .wrapping_add(n * size_of::<AccessRecord>() as u64),
        ) else {
            return EFAULT;
        };
        let before = old;
        if old != 0 {
            old = old.wrapping_add(made.len);
        }
        let addr = TargetAddr(made.addr);
        if made.len == 0
            || made.addr.checked_add(made.len).is_none()
            || !g().watchlist().any_overlap(addr, made.len)
        {
            continue;
        }
        let before = (before != 0 && readable(before, made.len)).then(|| {
            // SAFETY: just checked.
            unsafe { core::slice::from_raw_parts(before as *const u8, made.len as usize) }
        });
        let cause = Cause {
            pc: report.pc,
            addr,
            len: made.len,
            kind: kind(made.kind),
            old: before,
            new: None,
            kept: None,
            syscall: call.as_ref(),
            locked: false,
        };
        hits(t, &gprs, &cause, &mut events);
    }
    if events.is_empty() {
        return 0;
    }
    let i = t.own();
    let due = Due {
        events,
        context: report.context,
        stack: report.stack,
        call,
    };
    let waiting = i.library.waiting.get();
    match i.library.due.get(waiting) {
        Some(slot) => {
            slot.set(due);
            i.library.waiting.set(waiting + 1);
        }
        None => events.iter().for_each(|e| i.report(e)),
    }
    1
}
