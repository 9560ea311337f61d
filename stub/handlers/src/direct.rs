//! Accounts for a hit inside a trampoline without a signal.
//!
//! ```text
//! body:  old value → area, the instruction on the alias ─▶ ulpf_direct: registers → frame on the block
//!                                                             ulpf_direct_hit: count, log, filter
//!        back to the program  ◀──────────────────────────── ulpf_direct_tail: registers
//!        int3: a stop is wanted, or a signal has struck ◀─┘
//! ```
//! The thread's block is free while the program runs, so its stack serves here too. From the first instruction of
//! `ulpf_direct`, the thread is in our own image. A signal is put off there, as anywhere in it ([`crate::signals`]). The
//! signal's remaining work, and a stop, need the program's whole state in a signal frame, and an `int3` makes one. The
//! tail only reads its frame, so it can start again after an interruption.

use core::sync::atomic::Ordering::*;

use ulpf_engine::access::{Class, Insn};
use ulpf_engine::cpu::Cpu;
use ulpf_lib::ring::Area;
use ulpf_lib::{AccessKind, TargetAddr};
use ulpf_stub_tables::patches::{AGAIN, Known, NATIVE};

use crate::cause::Cause;
use crate::check;
use crate::direct_frame::{Frame, is_trap};
use crate::fault;
use crate::global::g;
use crate::hits;
use crate::locks::{self, Held};
use crate::log;
use crate::masked_stores::{self, Made};
use crate::patches::{self, Idle};
use crate::paths;
use crate::runs;
use crate::runtime::areas::area;
use crate::runtime::events::{Events, Request};
use crate::runtime::frame::UContext;
use crate::runtime::park;
use crate::runtime::thread::Current;
use crate::signals::raise;

/// Counts, logs and filters. For work that cannot be done here, the tail raises its `int3`.
#[unsafe(no_mangle)]
extern "C" fn ulpf_direct_hit(frame: &mut Frame) {
    // SAFETY: the frame is on the thread's block.
    let t = unsafe { Current::get() };
    let Some(area) = area(t) else { return };
    // SAFETY: a patch is not removed while a thread is on its way through it.
    let known = unsafe { &*(area.hit.load(Relaxed) as *const Known) };
    if known.call != 0 {
        return check::hooks::called(t, known, frame);
    }
    if known.operand.is_some() {
        frame.gprs.rip = known.pc;
        return check::out_of_block::ask(t, &frame.gprs, known);
    }
    if known.repeats && !known.leaving {
        return make_runs(t, area, known, frame);
    }
    if known.leaving {
        match patches::idle(t, area, known.pc) {
            Idle::Stays => {}
            Idle::Removed => area.hit.store(
                &raw const *known as u64 + size_of::<Known>() as u64,
                Relaxed,
            ),
            Idle::ToRemove => {
                t.own().cool.set(known.pc);
                t.attention.store(1, SeqCst);
            }
        }
        return;
    }
    let alias = area.alias.load(Relaxed);
    let held = Held::by_trampoline(alias);
    let gprs = &mut frame.gprs;
    gprs.rip = known.after(area);
    let size = (known.size as usize).min(size_of_val(&area.old));
    let Some(addr) = patches::behind_alias(alias) else {
        return held.give_back();
    };
    // SAFETY: the trampoline has put that many bytes there.
    let old = unsafe { core::slice::from_raw_parts((&raw const area.old).cast::<u8>(), size) };
    // SAFETY: the access itself has been made there. (As anywhere in the program, another thread may write there
    // meanwhile.)
    let new = unsafe { core::slice::from_raw_parts(alias as *const u8, size) };
    let cause = Cause {
        pc: known.pc,
        addr: TargetAddr(addr),
        len: known.size,
        kind: known.kind,
        old: Some(old),
        new: Some(new),
        kept: None,
        syscall: None,
        locked: true,
    };
    let mut events = Events::none();
    if !hits::hits(t, gprs, &cause, &mut events) {
        hits::count_false_positive(t, TargetAddr(addr));
    }
    match events.is_empty() {
        true => {
            held.give_back();
            // The next trampoline takes the lock before it comes here.
            log::reserve(t);
        }
        false => locks::keep(t, held),
    }
    let i = t.own();
    let due = i.reconsider.get() != 0 || i.new_code.get() != 0 || paths::has_changed();
    if !events.is_empty() || due {
        i.pending.set(events);
        t.attention.store(1, SeqCst);
    }
}

/// Limit of runs of a string instruction before signals get their turn.
const MOST_RUNS: usize = 64;

/// Sets the record of the instruction by which the tail continues.
fn go_on(area: &Area, known: &'static Known, which: usize) {
    let at = &raw const *known as u64 + (which * size_of::<Known>()) as u64;
    area.hit.store(at, Relaxed);
}

/// Performs a string instruction, a page at a time. The tail continues behind the instruction, or at its beginning if
/// more iterations are left. It continues at a native copy if there is no guard, or raises its `int3` if only a fault
/// handler can do the rest.
fn make_runs(t: Current, area: &Area, known: &'static Known, frame: &mut Frame) {
    let go_on = |which| go_on(area, known, which);
    let Some(insn) = known.insn.as_deref() else {
        return go_on(NATIVE);
    };
    if insn.class == Class::MaskedEvex {
        return make_masked(t, area, known, frame, insn);
    }
    let gprs = &mut frame.gprs;
    gprs.rip = known.pc;
    let mut cpu = Cpu {
        gprs,
        fs_base: 0,
        gs_base: 0,
        xsave: core::ptr::null_mut(),
        xsave_len: 0,
    };
    let i = t.own();
    let mut made = 0;
    let more = loop {
        if insn.is_rep() && insn.string_count(&cpu) == 0 {
            break false;
        }
        // SAFETY: the thread runs the program, so its handlers keep nothing there. (There are no runs while a handler
        // steps.)
        let buffers = unsafe { fault::run_buffers(t) };
        let Some(run) = runs::run(t, &mut cpu, insn, buffers, 1) else {
            break true;
        };
        made += 1;
        if !run.more || made == MOST_RUNS {
            break run.more;
        }
    };
    let page = g().page_map.entry(TargetAddr(insn.string_dest(&cpu)));
    let source = g().page_map.entry(TargetAddr(insn.string_source(&cpu)));
    let guarded = page.guards(AccessKind::Write)
        || insn.class == Class::Movs && source.guards(AccessKind::Read);
    let idle = patches::count_idle(t, area, known, made > 0 || guarded);
    if let Some(Idle::ToRemove) = idle {
        i.cool.set(known.pc);
        t.attention.store(1, SeqCst);
    }
    if more && made == MOST_RUNS {
        go_on(AGAIN);
    } else if more && guarded {
        go_on(AGAIN);
        i.unmade.set(true);
        t.attention.store(1, SeqCst);
    } else if more {
        go_on(NATIVE);
    }
    if i.reconsider.get() != 0 || i.new_code.get() != 0 {
        t.attention.store(1, SeqCst);
    }
}

/// Performs a masked store; the tail continues as for a string instruction.
fn make_masked(t: Current, area: &Area, known: &'static Known, frame: &mut Frame, insn: &Insn) {
    let i = t.own();
    frame.gprs.rip = known.pc;
    let cpu = Cpu {
        gprs: &mut frame.gprs,
        fs_base: 0,
        gs_base: 0,
        xsave: core::ptr::null_mut(),
        xsave_len: 0,
    };
    let made = masked_stores::store(t, &cpu, insn, area);
    let idle = patches::count_idle(t, area, known, made != Made::Native);
    if let Some(Idle::ToRemove) = idle {
        i.cool.set(known.pc);
        t.attention.store(1, SeqCst);
    }
    match made {
        Made::Yes => {}
        Made::Native => go_on(area, known, NATIVE),
        Made::No => {
            go_on(area, known, AGAIN);
            i.unmade.set(true);
            t.attention.store(1, SeqCst);
        }
    }
    if i.reconsider.get() != 0 || i.new_code.get() != 0 {
        t.attention.store(1, SeqCst);
    }
}

/// Does the work that had to wait, if this `int3` is the tail's. Returns `false` if it is not.
pub fn finish(t: Current, uc: &mut UContext) -> bool {
    if !is_trap(uc.gprs.rip.wrapping_sub(1)) {
        return false;
    }
    let Some(area) = area(t) else {
        return false;
    };
    // SAFETY: see `ulpf_direct_hit`.
    let known = unsafe { &*(area.hit.load(Relaxed) as *const Known) };
    uc.gprs.rip = known.after(area);
    let i = t.own();
    if let Some(mask) = i.direct_mask.take() {
        uc.sigmask = mask;
    }
    if known.call != 0 {
        check::hooks::finish(t, uc, known);
    }
    paths::settle(t, uc);
    let cool = i.cool.take();
    if cool != 0 && i.own_step.get().is_none() && !t.stepping.load(Relaxed) {
        park::request(t, uc, Request::Cool { start: cool });
    }
    let events = i.pending.replace(Events::none());
    if i.unmade.take() {
        fault::again(t, uc);
    } else if events.is_empty() {
        fault::look_again(t, uc);
    } else {
        fault::stop_for(t, uc, &events);
    }
    raise::late(t, uc);
    patches::skip(t, uc);
    true
}
