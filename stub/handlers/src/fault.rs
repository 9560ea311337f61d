//! One fault on a guarded page: find out what the instruction touches, perform it through the alias, compare, count and
//! log. The thread stops only if the debugger wants it.
//!
//! ```text
//! fault ─▶ site (decoded once) ─▶ accesses ─▶ old values ─▶ perform ─▶ new values ─▶ hits ─▶ go on
//!                                                  └ cannot be redirected: all others park,
//!                                                    the pages are opened for one single step
//! ```

use core::sync::atomic::Ordering::*;

use ulpf_engine::access::{AccessList, Insn};
use ulpf_engine::cpu::Cpu;
use ulpf_engine::exec::{FaultInfo, Outcome, Slow};
use ulpf_lib::eflags;
use ulpf_lib::guard::{Fault, PROT_EXEC};
use ulpf_lib::ring::Unpatched;
use ulpf_lib::{AccessKind, PAGE_SIZE, TargetAddr, WatchKind, WatchRange};

use crate::cause::Cause;
use crate::check::{self, out_of_block, precheck};
use crate::engine;
use crate::generated;
use crate::global::g;
use crate::hits::{count_false_positive, hits};
use crate::hot_sites::{self, HOPELESS, MISSED, count_access};
use crate::locks::{self, Held};
use crate::log;
use crate::patches;
use crate::paths;
use crate::runs;
use crate::runtime::debug_traps;
use crate::runtime::events::{Event, Events, Request};
use crate::runtime::frame::{SigInfo, UContext, fpstate_len};
use crate::runtime::memory;
use crate::runtime::park::{self, park, request};
use crate::runtime::thread::{Current, OwnStep, OwnStepKind, SCRATCH};
use crate::sequences;
use crate::signals::{numbers, raise};
use crate::syscalls::{catch, forked};

/// Iterations of a string instruction that one fault may serve, so that signals get their turn.
const MAX_REPEATS: u32 = 1 << 16;
/// Start of the saved access list in the scratch area; old values follow it.
const OLD_AT: usize = size_of::<AccessList>().next_multiple_of(64);

/// Handles a fault. Returns `false` if it is not a fault on our guards.
pub fn handle(t: Current, uc: &mut UContext, info: &SigInfo) -> bool {
    // Bits of the page-fault error code.
    const WRITE: u64 = 2;
    const FETCH: u64 = 16;
    // Our guards make SIGSEGV only; SIGBUS says that the file behind a mapping ends before the page.
    if info.signo != numbers::SIGSEGV {
        return false;
    }
    let kind = if uc.err & WRITE != 0 {
        AccessKind::Write
    } else {
        AccessKind::Read
    };
    let page = g().page_map.entry(TargetAddr(info.addr()));
    if uc.err & FETCH != 0 && page.moved() && page.prot() & PROT_EXEC == 0 {
        return false; // a jump to what is no code
    }
    match g().page_map.fault(TargetAddr(info.addr()), kind) {
        Fault::Foreign | Fault::Forbidden => {
            return kind.writes() && generated::written(t, uc, info.addr());
        }
        Fault::Stale => return true,
        Fault::Guarded => {}
    }
    if sequences::was_aborted(t, uc) && !sequences::active(t) {
        cancel_own_step(t, uc);
        if !sequences::begin(t, uc) && t.stepping.load(Relaxed) {
            raise::step_done(t, uc);
        }
        return true;
    }
    if let Some(h) = g().header() {
        h.faults.fetch_add(1, Relaxed);
    }
    let (pc, own) = (uc.gprs.rip, park::steps_itself(t, uc));
    match repeat(t, uc, TargetAddr(info.addr()), own, true) {
        Step::Done | Step::Again | Step::Alone => {}
        Step::NotYet => return true,
        Step::Stopped => {
            own_step_is_over(t, uc, pc, own);
            return true;
        }
        Step::Fault(what) => {
            if !generated::met(t, uc, &what) {
                raise_fault(t, uc, what);
            }
            return true;
        }
    }
    look_again(t, uc);
    if sequences::active(t) {
        section_stepped(t, uc);
    } else if t.stepping.load(Relaxed) {
        raise::step_done(t, uc);
    } else if own {
        raise::own_trap(t, uc);
    }
    true
}

/// A step inside a restartable sequence has executed an instruction.
fn section_stepped(t: Current, uc: &mut UContext) {
    if sequences::stepped(t, uc) {
        stop_for_met(t, uc);
        if t.stepping.load(Relaxed) {
            raise::step_done(t, uc);
        }
    }
}

/// Parks for the events of a sequence that has ended.
pub fn stop_for_met(t: Current, uc: &mut UContext) {
    let met = t.own().pending.replace(Events::none());
    if !met.is_empty() {
        stop_for(t, uc, &met);
    }
}

/// The program steps itself (`own`), and the instruction at `pc` has been performed or has stopped it.
fn own_step_is_over(t: Current, uc: &mut UContext, pc: u64, own: bool) {
    if own && t.own().own_step.get().is_none() && !t.leaving.load(Relaxed) && uc.gprs.rip != pc {
        raise::own_trap(t, uc);
    }
}

/// As [`handle`], for an access that a patch has left to us.
pub fn again(t: Current, uc: &mut UContext) {
    let (pc, own) = (uc.gprs.rip, park::steps_itself(t, uc));
    match repeat(t, uc, TargetAddr(0), own, false) {
        Step::Done | Step::Again | Step::Alone => {}
        Step::NotYet => return,
        Step::Stopped => return own_step_is_over(t, uc, pc, own),
        Step::Fault(what) if generated::met(t, uc, &what) => return,
        Step::Fault(what) => return raise_fault(t, uc, what),
    }
    look_again(t, uc);
    if sequences::active(t) {
        section_stepped(t, uc);
    } else if t.stepping.load(Relaxed) && uc.gprs.rip != pc {
        raise::step_done(t, uc);
    } else {
        own_step_is_over(t, uc, pc, own);
    }
}

/// Performs an access, and as many iterations of a string instruction as allowed; `faulted` is as for [`perform`].
fn repeat(t: Current, uc: &mut UContext, fault_at: TargetAddr, own: bool, faulted: bool) -> Step {
    let mut repeats = 0;
    loop {
        // Later iterations may lie on pages without guard.
        let first = repeats == 0;
        let at = if first { fault_at } else { TargetAddr(0) };
        match perform(t, uc, at, faulted && first) {
            Step::Alone => {}
            Step::Again if repeats < MAX_REPEATS && !own && !t.stepping.load(Relaxed) => {
                repeats += 1
            }
            step => return step,
        }
    }
}

fn raise_fault(t: Current, uc: &mut UContext, what: FaultInfo) {
    uc.err = what.error;
    uc.cr2 = what.addr;
    cancel_own_step(t, uc);
    raise::raise(t, uc, what.signo, &what.siginfo());
}

/// Asks the stub's task to place the watches of a page again, or to patch a hot site, if that is due.
pub fn look_again(t: Current, uc: &mut UContext) {
    let page = t.own().reconsider.take();
    if page != 0 && t.own().own_step.get().is_none() {
        request(t, uc, Request::Reconsider { page });
    }
    let at = t.own().new_code.take();
    if at != 0 && t.own().own_step.get().is_none() {
        request(t, uc, Request::Unwind { at });
    }
    if let Some((site, page)) = t.own().hot.take()
        && t.own().own_step.get().is_none()
        && !t.stepping.load(Relaxed)
    {
        let pc = site.insn.pc;
        let classed = g().page_map.class(TargetAddr(page)) != 0;
        let entered = patches::is_entered_behind(pc);
        if classed && patches::is_patched(pc) && !entered {
            let again = match patches::may_be_entered_behind(pc) {
                true => 0,
                false => -MISSED,
            };
            site.heat.store(again, Relaxed);
            return;
        }
        if classed && !entered && (patches::visit(t, pc) || patches::switch(t, pc, true)) {
            return;
        }
        request(t, uc, Request::PatchAccess { pc, page });
        if !patches::is_patched(pc) || g().page_map.class(TargetAddr(page)) == 0 {
            site.heat.store(-hot_sites::after(pc), Relaxed);
        }
    }
}

/// Counts a fault for the summary, with the reason why its instruction is not patched.
fn count_fault(why: Unpatched) {
    if let Some(n) = g().header().and_then(|h| h.unpatched.get(why as usize)) {
        n.fetch_add(1, Relaxed);
    }
}

enum Step {
    /// The other threads are parked now: the instruction starts again.
    Alone,
    Done,
    /// One iteration of a string instruction; more follow.
    Again,
    /// Another thread holds the locks: the instruction starts again.
    NotYet,
    /// The thread has parked, or makes a slow step.
    Stopped,
    /// The program's own fault.
    Fault(FaultInfo),
}

/// Performs the access. `faulted` is true for the first one after a fault.
fn perform(t: Current, uc: &mut UContext, fault_at: TargetAddr, faulted: bool) -> Step {
    let pc = uc.gprs.rip;
    let mut bytes = [0u8; 15];
    let code = &*memory::code(pc, &mut bytes);
    let Ok(site) = engine::thunks().site(engine::decoder(), pc, code) else {
        return without_site(t, uc, code, fault_at);
    };
    let own = park::steps_itself(t, uc);
    let mut cpu = cpu(t, uc);
    let mut list = AccessList::new();
    accesses(&site.insn, &cpu, &mut list);
    let known = !list.overflowed() && site.insn.accesses_known();
    let wrong = precheck::stops_at(t, cpu.gprs, site, known.then_some(&list));
    if !wrong.is_empty() {
        cancel_own_step(t, uc);
        stop_for(t, uc, &wrong);
        return Step::Stopped;
    }
    if known && paths::asks_for_rest(t, &list) {
        paths::begin(t, uc);
        return Step::Alone;
    }
    if known && sequences::enters(t, &list) && !own {
        sequences::enter(t, uc);
        return Step::Alone;
    }
    if faulted {
        site.faults.fetch_add(1, Relaxed);
        count_fault(patches::has_faulted(pc, fault_at.page()));
    }
    if !known {
        return slow(t, uc, None, fault_at, None);
    }
    // SAFETY: nothing is kept there before `save_old`.
    let buffers = unsafe { run_buffers(t) };
    if let Some(run) = runs::run(t, &mut cpu, &site.insn, buffers, runs::LEAST) {
        if run.beside && faulted {
            site.beside.fetch_add(1, Relaxed);
        }
        if faulted {
            count_access(t, site, fault_at);
        }
        paths::settle(t, uc);
        return if run.more { Step::Again } else { Step::Done };
    }
    // An empty list is correct, too: `clflush` faults as a load does and touches nothing.
    let watched = list
        .iter()
        .any(|a| g().watchlist().any_overlap(a.addr, a.len));
    let (mut saved, mut held) = (0, Held::NONE);
    if watched {
        log::reserve(t);
        held = match locks::take(t, &list) {
            Some(held) => held,
            None => {
                paths::settle(t, uc);
                if sequences::active(t) {
                    // The thread that holds the locks is stopped by us, so we must let the world continue.
                    cancel_own_step(t, uc);
                }
                return Step::NotYet;
            }
        };
        saved = save_old(t, &list);
    }
    if t.stepping.load(Relaxed) {
        // The debugger's trap flag is not the program's: `pushf` must not store it.
        cpu.gprs.rflags &= !eflags::TF;
    }
    if !check::STOPS.load(Relaxed) {
        out_of_block::access(t, cpu.gprs, site, &list);
    }
    let probe = site.insn.probe(&cpu);
    match engine::thunks().execute(site, &mut cpu, &g().page_map) {
        Outcome::NeedSlow(why) => {
            held.give_back();
            // (Its next access may lie on one page.)
            if why != Slow::Split {
                site.heat.store(-HOPELESS, Relaxed);
            }
            slow(t, uc, Some(&list), fault_at, probe)
        }
        Outcome::Fault(what) => {
            held.give_back();
            paths::settle(t, uc);
            Step::Fault(what)
        }
        done => {
            let mut events = Events::none();
            if !watched {
                if let Some(at) = guarded(&list, fault_at) {
                    count_false_positive(t, at);
                    if faulted {
                        site.beside.fetch_add(1, Relaxed);
                    }
                    count_access(t, site, at);
                }
            } else {
                events = report(t, uc, pc, &list, saved);
                if sequences::active(t) {
                    // They are reported when the sequence is over.
                    events.take_all().iter().for_each(|e| t.own().report(e));
                }
                match events.is_empty() {
                    true => held.give_back(),
                    false => locks::keep(t, held),
                }
                if events.is_empty()
                    && let Some(at) = guarded(&list, fault_at)
                {
                    count_access(t, site, at);
                }
            }
            let again = matches!(done, Outcome::Repeat);
            if !again || !events.is_empty() {
                // A step over a breakpoint on this instruction is made by it, too.
                match sequences::active(t) {
                    true => sequences::performed(t, uc),
                    false => cancel_own_step(t, uc),
                }
            }
            paths::settle(t, uc);
            if !events.is_empty() {
                stop_for(t, uc, &events);
                return Step::Stopped;
            }
            if again { Step::Again } else { Step::Done }
        }
    }
}

/// The thread as it was when the signal came.
fn cpu(t: Current, uc: &mut UContext) -> Cpu<'_> {
    let (fs_base, gs_base) = park::bases(t);
    // SAFETY: the frame's own image.
    let (_, xsave_len) = unsafe { fpstate_len(uc.fpstate) };
    Cpu {
        gprs: &mut uc.gprs,
        fs_base,
        gs_base,
        xsave: uc.fpstate,
        xsave_len,
    }
}

/// Lists the accesses of the instruction. The header of its image says how much `xrstor` reads.
fn accesses(insn: &Insn, cpu: &Cpu, list: &mut AccessList) {
    let mut header = [0; 16];
    match insn.xrstor_header(cpu) {
        Some(at) if memory::read(at, &mut header) == header.len() => {
            let word = |from: usize| u64::from_le_bytes(core::array::from_fn(|i| header[from + i]));
            insn.xrstor_accesses(cpu, [word(0), word(8)], list);
        }
        _ => insn.accesses(cpu, list),
    }
}

/// Performs an instruction that has no site: it cannot be decoded, or the table of sites is full.
fn without_site(t: Current, uc: &mut UContext, code: &[u8], fault_at: TargetAddr) -> Step {
    let Some(insn) = engine::decode(uc.gprs.rip, code).filter(|i| i.accesses_known()) else {
        return slow(t, uc, None, fault_at, None);
    };
    let cpu = cpu(t, uc);
    let mut list = AccessList::new();
    accesses(&insn, &cpu, &mut list);
    let probe = insn.probe(&cpu);
    let known = !list.overflowed();
    slow(t, uc, known.then_some(&list), fault_at, probe)
}

/// The first address of the accesses that is guarded: `fault_at`, if the access has faulted.
fn guarded(list: &AccessList, fault_at: TargetAddr) -> Option<TargetAddr> {
    if fault_at.0 != 0 {
        return Some(fault_at);
    }
    let ends = list
        .iter()
        .flat_map(|a| [(a.addr.0, a.kind), (a.addr.0 + a.len - 1, a.kind)]);
    ends.map(|(at, kind)| (TargetAddr(at), kind))
        .find(|(at, kind)| g().page_map.entry(*at).guards(*kind))
        .map(|(at, _)| at)
}

/// # Safety
/// The thread's scratch area must not be in use otherwise.
pub unsafe fn run_buffers<'a>(t: Current) -> runs::Buffers<'a> {
    const { assert!(OLD_AT + 2 * PAGE_SIZE as usize <= SCRATCH) };
    // SAFETY: two pages of the thread's scratch area, and the caller's duty.
    unsafe {
        let at = t.scratch().add(OLD_AT);
        runs::Buffers {
            old: &mut *at.cast(),
            new: &mut *at.add(PAGE_SIZE as usize).cast(),
        }
    }
}

/// Saves the bytes that the accesses are about to change in the thread's scratch area. Returns the number of bytes
/// saved.
fn save_old(t: Current, list: &AccessList) -> usize {
    let mut used = 0;
    let room = SCRATCH - OLD_AT;
    for a in list.iter() {
        let n = a.len as usize;
        if used + n > room {
            break;
        }
        // SAFETY: within the scratch area.
        let to = unsafe { core::slice::from_raw_parts_mut(t.scratch().add(OLD_AT + used), n) };
        memory::look(a.addr.0, to);
        used += n;
    }
    used
}

/// Parks once for each event. The debugger compares only the watch that a stop names, so a store that meets several
/// watches makes several stops. The debugger's own watches come first, since it may report the others along with them
/// (`monitor ulpf stop rest`).
pub fn stop_for(t: Current, uc: &mut UContext, events: &Events) {
    let pc = uc.gprs.rip;
    let mut within_call = false;
    let later = &t.own().later;
    let own = |e: &Event| !matches!(e, Event::Watch { id, .. } if g().is_out_of_band(*id));
    let mut left = events.ordered(own);
    let mut reported = Events::none();
    while let Some(event) = left.take_first() {
        let first = reported.is_empty();
        // After the first stop the debugger may have taken the watch away, or moved the thread.
        if t.leaving.load(Relaxed)
            || !first
                && (uc.gprs.rip != pc || !still_wanted(t, event) || is_reported(&reported, event))
        {
            continue;
        }
        reported.push(event);
        later.set(left);
        park::end_step(t, uc);
        park(t, uc, event);
        left = later.replace(Events::none());
        if matches!(event, Event::Forked { .. }) {
            forked::until_it_runs(t);
        }
        within_call = matches!(event, Event::Forked { .. } | Event::VforkDone);
    }
    // The kernel reports these within the call, and a step from there ends where the call returns.
    if within_call && t.stepping.load(Relaxed) && uc.gprs.rip == pc {
        raise::step_done(t, uc);
    }
    locks::give_back_kept(&t);
}

/// True if the debugger has examined this watch already. GDB examines all watches with the byte that a stop names, LLDB
/// one of them. (GDB takes a changed value for a write, even if the access was a read.)
fn is_reported(reported: &Events, event: Event) -> bool {
    let Event::Watch { id, kind, .. } = event else {
        return false;
    };
    let lldb = g().stop_at_silent.load(Relaxed);
    if lldb || kind == WatchKind::Read || g().is_out_of_band(id) {
        return false;
    }
    reported.iter().any(|e| match e {
        Event::Watch {
            id: other, addr, ..
        } if !g().is_out_of_band(other) => {
            let mut same = false;
            g().watchlist()
                .for_each_overlap(addr, 1, &mut |at, _, _| same |= at == id);
            same
        }
        _ => false,
    })
}

fn still_wanted(t: Current, event: Event) -> bool {
    let (kind, addr) = match event {
        Event::Watch { kind, addr, .. } => (kind, addr),
        Event::Syscall { nr, entry: false } => return catch::wanted(t, nr),
        _ => return true,
    };
    let mut wanted = false;
    g().watchlist().for_each_overlap(addr, 1, &mut |id, _, k| {
        wanted |= k == kind && g().attributes(id).stop;
    });
    wanted
}

/// Counts and logs the hits of one instruction; returns the events to stop for.
fn report(t: Current, uc: &UContext, pc: u64, list: &AccessList, saved: usize) -> Events {
    let mut stops = Events::none();
    let mut used = 0;
    for a in list.iter() {
        let n = a.len as usize;
        let old = if used + n <= saved {
            // SAFETY: written by `save_old`.
            Some(unsafe { core::slice::from_raw_parts(t.scratch().add(OLD_AT + used), n) })
        } else {
            None
        };
        used += n;
        let cause = Cause {
            pc,
            addr: a.addr,
            len: a.len,
            kind: a.kind,
            old,
            new: None,
            kept: None,
            syscall: None,
            locked: true,
        };
        hits(t, &uc.gprs, &cause, &mut stops);
    }
    stops
}

// ---- one step by ourselves ---------------------------------------------------------------------

/// The slow, exact way: all other threads park, the pages are opened, the instruction is single-stepped.
fn slow(
    t: Current,
    uc: &mut UContext,
    list: Option<&AccessList>,
    fault_at: TargetAddr,
    probe: Option<u64>,
) -> Step {
    paths::settle(t, uc);
    if let Some(h) = g().header() {
        h.slow.fetch_add(1, Relaxed);
    }
    let (mut start, mut end) = match fault_at.0 {
        0 => (u64::MAX, 0),
        at => (at, at + 1),
    };
    let mut kept = AccessList::new();
    if let Some(l) = list {
        for a in l.iter() {
            start = start.min(a.addr.0);
            end = end.max(a.addr.0.saturating_add(a.len));
        }
        // The probed page opens, too. Otherwise the step would fault after its write, and repeat it: the old value would
        // be lost.
        if let Some(p) = probe {
            start = start.min(p);
            end = end.max(p.saturating_add(8));
        }
        kept = *l;
    } else {
        // Unknown accesses: all guarded pages open, and changes are found by comparing.
        (start, end) = (0, ulpf_lib::addr::USER_END);
        let page = fault_at.page();
        g().watchlist()
            .for_each_overlap(page, PAGE_SIZE, &mut |_, range: WatchRange, _| {
                let from = range.start.0.max(page.0);
                let to = range.end().0.min(page.0 + PAGE_SIZE);
                kept.push(from, to - from, AccessKind::Write);
            });
    }
    begin_own_step(t, uc, OwnStepKind::Slow, Request::OpenBegin { start, end });
    // No other thread writes now.
    save_old(t, &kept);
    // SAFETY: the scratch area begins with room for the list.
    unsafe { (t.scratch() as *mut AccessList).write(kept) };
    Step::Stopped
}

/// Stops the world, except for one step of this thread, and starts the step.
pub fn begin_own_step(t: Current, uc: &mut UContext, kind: OwnStepKind, what: Request) {
    let tf = park::steps_itself(t, uc);
    request(t, uc, what);
    // A step that meets another guarded page starts again, with that page open as well.
    let mask = t.own().own_step.get().map_or(uc.sigmask, |s| s.mask);
    t.own().own_step.set(Some(OwnStep {
        kind,
        tf,
        mask,
        pc: uc.gprs.rip,
    }));
    uc.sigmask |= numbers::HANDLER_MASK;
    park::set_tf(uc, true);
}

/// Ends our own step: restores the program's signal mask, and the trap flag of program and debugger.
fn take_own_step(t: Current, uc: &mut UContext) -> Option<OwnStep> {
    let step = t.own().own_step.take()?;
    uc.sigmask = step.mask;
    park::set_tf(uc, t.stepping.load(Relaxed) || step.tf);
    Some(step)
}

/// Completes a step of ours.
pub fn end_own_step(t: Current, uc: &mut UContext) {
    let fired = debug_traps::drain(t);
    let Some(step) = take_own_step(t, uc) else {
        return;
    };
    let mut events = Events::none();
    if step.kind == OwnStepKind::Slow {
        // SAFETY: written by `slow`.
        let list = unsafe { (t.scratch() as *const AccessList).read() };
        let watched = list
            .iter()
            .any(|a| g().watchlist().any_overlap(a.addr, a.len));
        if watched {
            events = report(t, uc, step.pc, &list, SCRATCH - OLD_AT);
        } else if let Some(a) = list.iter().next() {
            count_false_positive(t, a.addr);
        }
        if fired.any() {
            let listed = |r: WatchRange| list.iter().any(|a| r.overlaps(a.addr, a.len));
            debug_traps::report(t, uc, &fired, Some(step.pc), listed, &mut events);
        }
    } else if fired.any() {
        debug_traps::report(t, uc, &fired, Some(step.pc), |_| false, &mut events);
    }
    if sequences::active(t) {
        sequences::made(t, uc, step, &events);
        return section_stepped(t, uc);
    }
    if !events.is_empty() && step.kind == OwnStepKind::Slow {
        // SAFETY: as above.
        let list = unsafe { &*(t.scratch() as *const AccessList) };
        // The other threads are still parked, and hold locks only for stops of their own.
        if let Some(held) = locks::take(t, list) {
            locks::keep(t, held);
        }
    }
    request(t, uc, Request::End);
    paths::settle(t, uc);
    if !events.is_empty() {
        stop_for(t, uc, &events);
    } else if t.stepping.load(Relaxed) && uc.gprs.rip != step.pc {
        raise::step_done(t, uc);
        return;
    }
    own_step_is_over(t, uc, step.pc, step.tf);
    if let Some(section) = t.own().section_after.take() {
        let at = uc.gprs.rip;
        sequences::go_on(t, uc, section, at);
    }
}

/// The stepped instruction has faulted for reasons of its own, or has been performed in another way.
pub fn cancel_own_step(t: Current, uc: &mut UContext) {
    if sequences::abandon(t, uc) {
        stop_for_met(t, uc);
    } else if take_own_step(t, uc).is_some() {
        request(t, uc, Request::End);
    }
}
