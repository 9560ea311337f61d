//! Entry points from the kernel: the handlers of all signals, and of forbidden accesses that come without one.

use core::sync::atomic::Ordering::*;

use linux_raw_sys::general as k;
use ulpf_lib::boot::PARK_SIGNAL;
use ulpf_lib::device::{self, Frame};

use super::actions::KernelAction;
use super::home;
use super::kernel::actions;
use super::leaving::park_is_ours;
use super::masks::{block, close};
use super::numbers::*;
use super::raise::{late, own_trap, raise, step_done};
use super::waiting;
use crate::engine::{self, ours};
use crate::global::g;
use crate::patches::{self, DisplacedEntry, Left};
use crate::runtime::asm::*;
use crate::runtime::clock;
use crate::runtime::debug_registers::{COOKIE, TRAP_PERF};
use crate::runtime::debug_traps;
use crate::runtime::events::{Event, Events, Request};
use crate::runtime::frame::*;
use crate::runtime::keys;
use crate::runtime::park::{self, park};
use crate::runtime::thread::{Current, OwnStepKind};
use crate::runtime::tracer;
use crate::sequences;
use crate::syscalls::{self, legacy, rseq, sites, vsyscall};
use crate::{breakpoints, check, direct, direct_frame, fault, generated, upcall};

/// Does the remaining work of signals that struck during a handler; called before it returns.
#[unsafe(no_mangle)]
extern "C" fn ulpf_late(uc: &mut UContext) {
    // SAFETY: handlers run on a thread's block.
    let t = unsafe { Current::get() };
    block(t, uc);
    late(t, uc);
}

/// A handler starts with the program's alignment-check flag; our code is not written for it.
#[inline(always)]
fn clear_ac() {
    // SAFETY: the flag only concerns our own accesses; the program's is in its frame.
    unsafe {
        core::arch::asm!(
            "pushfq",
            "test dword ptr [rsp], 0x40000",
            "jz 2f",
            "and dword ptr [rsp], 0xfffbffff",
            "popfq",
            "jmp 3f",
            "2:",
            "lea rsp, [rsp + 8]",
            "3:",
        )
    };
}

/// The beginning of each signal handler.
#[inline(always)]
fn begin(uc: &UContext) {
    clear_ac();
    keys::begin(uc);
}

/// The thread whose handler begins here.
#[inline(always)]
fn interrupted_thread(uc: &UContext) -> Current {
    // SAFETY: handlers run on a thread's block.
    let t = unsafe { Current::get() };
    if !ours(uc.gprs.rip) {
        upcall::forget(t);
    }
    t
}

/// A signal has interrupted our own code: inside `ulpf_blocking`'s window, or while a guarded access
/// is served.
fn interrupted_ourselves(t: Current, uc: &mut UContext, info: Option<&SigInfo>) {
    let rip = uc.gprs.rip;
    let i = t.own();
    t.attention.store(1, SeqCst);
    let direct = direct_frame::interrupted(t, uc);
    if let Some(info) = info {
        // No program blocks this signal: if it is blocked, the kernel has put this frame on top of another handler's.
        let open = uc.sigmask & bit(PARK_SIGNAL) == 0;
        if direct && open && i.direct_mask.get().is_none() {
            i.direct_mask.set(Some(uc.sigmask));
        } else if open && !direct {
            upcall::interrupted(t, rip, uc.sigmask);
        }
        i.defer(info);
        uc.sigmask |= HANDLER_MASK;
    }
    let window = ulpf_blocking_start as *const () as u64..=ulpf_blocking_insn as *const () as u64;
    if window.contains(&rip) || rip == ulpf_judged as *const () as u64 {
        uc.gprs.rip = ulpf_blocking_abort as *const () as u64;
    }
    let iret = ulpf_return_iret as *const () as u64;
    let start = ulpf_return as *const () as u64;
    if rip == iret {
        uc.gprs.rsp += IRET_FRAME;
    }
    if rip >= start && rip <= iret {
        uc.gprs.rip = start;
    }
}

/// Bytes below the ucontext that IRET takes (`asm::ulpf_return`).
const IRET_FRAME: u64 = 40;

#[unsafe(no_mangle)]
extern "C" fn ulpf_on_signal(sig: i32, info: &SigInfo, uc: &mut UContext) {
    begin(uc);
    let t = interrupted_thread(uc);
    if info.by_kernel() && matches!(sig, 4 | 8) && engine::recover(uc, info) {
        return;
    }
    // The trap of a boot entry came to a tracer that was killed; the instruction behind it is met.
    if info.by_kernel() && sig == 4 && home::restore(uc) {
        return rest(t, uc);
    }
    if info.by_kernel() && matches!(sig, 4 | 8) && !ours(uc.gprs.rip) {
        fault::cancel_own_step(t, uc);
    }
    arrived(t, uc, info);
}

/// Changes a context inside a trampoline or a slot into that of the original code.
///
/// A thread in a system call is in neither. It counts as stopped, so the tables that locate these may change at this
/// moment, and are not read.
fn leave_trampolines(t: Current, uc: &mut UContext) -> Option<sites::Left> {
    if !t.gate().may_read_tables() {
        return None;
    }
    patches::leave(t, uc);
    sites::leave(uc)
}

/// Handles a signal that no access to memory has caused.
fn arrived(t: Current, uc: &mut UContext, info: &SigInfo) {
    let rip = uc.gprs.rip;
    let left = leave_trampolines(t, uc);
    // It says where the instruction is that has failed: the program's, not its copy.
    let mut info = *info;
    if info.by_kernel() && matches!(info.signo, SIGILL | SIGFPE) && info.addr() == rip {
        info.data[0] = uc.gprs.rip;
    }
    let info = &info;
    if ours(uc.gprs.rip) {
        if waiting::set_aside(t, info) {
            // The program does not see it: a call that it has interrupted is made again.
            t.kicked.store(true, SeqCst);
            return interrupted_ourselves(t, uc, None);
        }
        return interrupted_ourselves(t, uc, Some(info));
    }
    if !waiting::set_aside(t, info) {
        raise(t, uc, info.signo, info);
    }
    if let Some(l) = left {
        l.rewind(uc); // the signal has not been handled
        l.again(t, uc);
    }
}

#[unsafe(no_mangle)]
extern "C" fn ulpf_on_park(_: i32, info: &SigInfo, uc: &mut UContext) {
    begin(uc);
    let t = interrupted_thread(uc);
    if !park_is_ours(t, info) {
        return arrived(t, uc, info);
    }
    upcall::learn(uc);
    let left = leave_trampolines(t, uc);
    if ours(uc.gprs.rip) {
        t.kicked.store(true, SeqCst);
        return interrupted_ourselves(t, uc, None);
    }
    if let Some(l) = left {
        l.rewind(uc);
    }
    rest(t, uc);
    if let Some(l) = left {
        l.again(t, uc);
    }
    patches::skip(t, uc);
}

/// Parks while the world is stopped.
fn rest(t: Current, uc: &mut UContext) {
    if g().world.load(SeqCst) != 0 && !tracer::holds(t) {
        park(t, uc, Event::None);
    }
    rseq::again(t, uc);
}

#[unsafe(no_mangle)]
extern "C" fn ulpf_on_fault(sig: i32, info: &SigInfo, uc: &mut UContext) {
    begin(uc);
    let t = interrupted_thread(uc);
    if !info.by_kernel() {
        return arrived(t, uc, info);
    }
    fault(t, sig, info, uc);
}

/// Handles a fault of this thread, which came by a signal or by an upcall.
pub fn fault(t: Current, sig: i32, info: &SigInfo, uc: &mut UContext) {
    if check::hooks::fault(t, uc) || ours(uc.gprs.rip) && clock::forbidden(uc, info) {
        return;
    }
    sites::leave(uc);
    // A privileged instruction: the thread has jumped to where another instruction was before a patch.
    let displaced = if sig == SIGSEGV && info.code == SI_KERNEL {
        patches::enter_displaced(t, uc)
    } else {
        None
    };
    let left = if displaced.is_none() {
        patches::leave(t, uc)
    } else {
        None
    };
    if left.is_some() && !patches::enable(t) {
        park::request(t, uc, Request::NoPatches);
    }
    let rip = uc.gprs.rip;
    if ours(rip) {
        if (ulpf_copy as *const () as u64..ulpf_copy_fixup as *const () as u64).contains(&rip) {
            uc.gprs.rip = ulpf_copy_fixup as *const () as u64;
            return;
        }
        if engine::recover(uc, info) {
            return;
        }
        crate::say::fatal_fault("the stub itself has faulted", rip, info.addr());
    }
    t.own().open.set(sig == SIGSEGV);
    if let Some(DisplacedEntry::Often(start)) = displaced {
        park::request(t, uc, Request::Cool { start });
    } else if displaced.is_some() {
        // It is on its way to the copy.
    } else if left == Some(Left::Access) {
        fault::again(t, uc);
    } else if !fault::handle(t, uc, info) && !vsyscall::serve(t, uc, info) {
        close(t, uc);
        if t.own().own_step.get().is_some() {
            fault::cancel_own_step(t, uc);
        }
        if t.own().hidden.get() & bit(sig) != 0 {
            // The program has blocked a synchronous signal: the kernel kills it for that.
            actions(t).set(sig, KernelAction::default());
        }
        raise(t, uc, sig, info);
    }
    patches::skip(t, uc);
    if t.own().open.replace(false) && uc.flags & UC_FP_XSTATE != 0 {
        uc.link |= RETURN_HERE;
    } else if t.attention.load(SeqCst) != 0 {
        ulpf_late(uc);
    }
}

const TRAP_TRACE: i32 = k::TRAP_TRACE as i32;
const TRAP_BRKPT: i32 = k::TRAP_BRKPT as i32;
const SI_KERNEL: i32 = k::SI_KERNEL as i32;

#[unsafe(no_mangle)]
extern "C" fn ulpf_on_trap(sig: i32, info: &SigInfo, uc: &mut UContext) {
    begin(uc);
    let t = interrupted_thread(uc);
    let i = t.own();
    if info.code == SI_KERNEL && home::restore(uc) {
        return rest(t, uc);
    }
    if !info.by_kernel() {
        patches::untrap(uc);
        return arrived(t, uc, info);
    }
    if info.code == TRAP_TRACE {
        match sites::step(uc) {
            sites::Stepped::No | sites::Stepped::Mov => {}
            sites::Stepped::First => return,
            sites::Stepped::Syscall => {
                let ours = t.stepping.load(Relaxed) || i.own_step.get().is_some();
                syscalls::dispatch(t, uc);
                if !ours {
                    raise(t, uc, sig, info);
                }
                return;
            }
        }
    }
    sites::leave(uc);
    if info.code == TRAP_TRACE && i.own_step.get().is_none() && check::hooks::stepped(t, uc) {
        return;
    }
    if info.code == SI_KERNEL {
        if direct::finish(t, uc) {
            return;
        }
        if patches::trap(t, uc, uc.gprs.rip.wrapping_sub(1)) {
            fault::again(t, uc);
            return patches::skip(t, uc);
        }
        // The program's own `int3`, of which a trampoline has a copy.
        patches::leave(t, uc);
    } else if patches::leave(t, uc) == Some(Left::Access)
        && info.code == TRAP_TRACE
        && (t.stepping.load(Relaxed) || park::steps_itself(t, uc) || sequences::active(t))
    {
        // The step has executed only the jump.
        return fault::again(t, uc);
    }
    // (A step over a system call says that, too.)
    let steps = i.own_step.get().is_some() || t.stepping.load(Relaxed) || park::steps_itself(t, uc);
    if info.code == TRAP_BRKPT
        && !steps
        && let Some(fired) = debug_traps::untold(t, uc)
    {
        if ours(uc.gprs.rip) {
            debug_traps::our_own(&fired);
        } else {
            report_matches(t, uc, &fired);
        }
        return;
    }
    if info.code == TRAP_PERF && info.data[1] == COOKIE {
        if ours(uc.gprs.rip) {
            debug_traps::our_own(&debug_traps::drain(t));
        } else {
            let aborted = sequences::was_aborted(t, uc).then_some(uc.gprs.rip);
            on_match(t, uc);
            if aborted == Some(uc.gprs.rip) && sequences::begin(t, uc) {
                return;
            }
            if park::steps_itself(t, uc) {
                own_trap(t, uc); // one SIGTRAP for both
            }
        }
        return;
    }
    if ours(uc.gprs.rip) {
        // A step into our code can only be at the restorer after a handler; it ends by itself.
        park::set_tf(uc, false);
        return;
    }
    if info.code == SI_KERNEL {
        let aborted = g().has_breakpoints() && sequences::was_aborted(t, uc);
        if aborted && sequences::begin(t, uc) {
            return; // the next attempt shows which breakpoint that is
        }
        let at = uc.gprs.rip.wrapping_sub(1);
        let step = i.own_step.get().filter(|s| s.pc == at);
        let own = step.filter(|s| s.kind != OwnStepKind::Section);
        if own.is_some_and(|s| s.kind == OwnStepKind::OverBreakpoint) {
            // The breakpoint is on an int3 of the program itself (a permanent breakpoint), which has been executed (as
            // in gdbserver's linux-low.cc, wait_1).
            return own_step_made(t, uc);
        }
        if own.is_some() {
            fault::cancel_own_step(t, uc);
        } else if g().breakpoint_at(at).is_some() {
            uc.gprs.rip = at;
            let section = i.section.get();
            let abort = sequences::interrupt(t, uc).flatten();
            // The list of breakpoints may change wherever the thread may park.
            fault::stop_for_met(t, uc);
            let collector = g().breakpoint_at(at).and_then(|b| b.collector);
            generated::collector_at(t, uc, collector);
            let Some(stop) = g().breakpoint_at(at) else {
                return; // it was only ours, and is not needed any more
            };
            let wanted = breakpoints::wants_stop(stop, t, uc);
            if wanted {
                park::end_step(t, uc);
                park(t, uc, Event::Breakpoint);
            }
            if let Some(abort) = abort.filter(|_| uc.gprs.rip == at) {
                // An interrupted sequence is aborted.
                uc.gprs.rip = abort;
            } else if !wanted {
                i.section_after.set(section);
                fault::begin_own_step(
                    t,
                    uc,
                    OwnStepKind::OverBreakpoint,
                    Request::StepOverBegin { addr: at },
                );
            }
            return;
        }
    }
    if info.code == SI_KERNEL && sequences::active(t) {
        // The program's own trap.
        fault::cancel_own_step(t, uc);
    } else if info.code == TRAP_TRACE || info.code == SI_KERNEL || info.code == TRAP_BRKPT {
        if i.own_step.get().is_some() {
            return own_step_made(t, uc);
        }
        if t.stepping.load(Relaxed) && info.code != SI_KERNEL {
            if !matched(t, uc) {
                stepped(t, uc);
            }
            return;
        }
    }
    if info.code == TRAP_TRACE {
        matched(t, uc);
    }
    raise(t, uc, sig, info);
}

/// One instruction of the debugger's step is done: checks whether the step is complete.
fn stepped(t: Current, uc: &mut UContext) {
    let (start, end) = t.range();
    if uc.gprs.rip >= start && uc.gprs.rip < end && g().world.load(SeqCst) == 0 {
        park::set_tf(uc, true);
    } else {
        step_done(t, uc);
    }
}

/// The thread has made its own step; handles signals that struck before.
fn own_step_made(t: Current, uc: &mut UContext) {
    fault::end_own_step(t, uc);
    if t.attention.load(SeqCst) != 0 {
        ulpf_late(uc);
    }
}

/// Debug registers have matched. If the instruction was stepped, the kernel sends one SIGTRAP for both: the step's
/// since Linux 6.x, the registers' before.
fn on_match(t: Current, uc: &mut UContext) {
    if t.own().own_step.get().is_some() {
        return own_step_made(t, uc);
    }
    if matched(t, uc) {
        return;
    }
    fault::look_again(t, uc);
    if t.stepping.load(Relaxed) {
        stepped(t, uc);
    }
}

/// Reports matches of debug registers by the last instruction. Returns `true` if the thread has parked for them.
fn matched(t: Current, uc: &mut UContext) -> bool {
    let fired = debug_traps::drain(t);
    fired.any() && report_matches(t, uc, &fired)
}

/// Reports these matches. Returns `true` if the thread has parked for them.
fn report_matches(t: Current, uc: &mut UContext, fired: &debug_traps::Fired) -> bool {
    let mut stops = Events::none();
    debug_traps::report(t, uc, fired, None, |_| false, &mut stops);
    if stops.is_empty() {
        return false;
    }
    fault::stop_for(t, uc, &stops);
    true
}

const SYS_USER_DISPATCH: i32 = k::SYS_USER_DISPATCH as i32;

#[unsafe(no_mangle)]
extern "C" fn ulpf_on_sys(sig: i32, info: &SigInfo, uc: &mut UContext) {
    begin(uc);
    let t = interrupted_thread(uc);
    if !info.by_kernel() {
        return arrived(t, uc, info);
    }
    sites::leave(uc);
    if info.code == SYS_USER_DISPATCH {
        match legacy::is_meant(info) {
            true => legacy::dispatch(t, uc),
            false => syscalls::dispatch(t, uc),
        }
        return;
    }
    if ours(uc.gprs.rip) {
        return interrupted_ourselves(t, uc, Some(info));
    }
    raise(t, uc, sig, info);
}

// ---- without a signal -----------------------------------------------------------------------------

/// Completes the frame, and handles the fault. `before` is the frame of an upcall that this one may have interrupted.
#[unsafe(no_mangle)]
extern "C" fn ulpf_upcall_made(uc: &mut UContext, frame: &Frame, before: *mut UContext) {
    // Bits of the page-fault error code: in user mode, by a store, by a fetch.
    const USER: u64 = 4;
    const WRITE: u64 = 2;
    const FETCH: u64 = 16;
    // UC_FP_XSTATE, UC_SIGCONTEXT_SS, UC_STRICT_RESTORE_SS
    const FLAGS: u64 = 1 | 2 | 4;
    const PAGE_FAULT: u64 = 14;
    const SEGV_ACCERR: i32 = k::SEGV_ACCERR as i32;
    // SAFETY: handlers run on a thread's block.
    let t = unsafe { Current::get() };
    uc.flags = FLAGS;
    uc.stack = t.our_stack();
    uc.gprs.rip = frame.ip;
    uc.gprs.rsp = frame.sp;
    uc.gprs.rflags = frame.flags;
    (uc.cs, uc.gs, uc.fs, uc.ss) = (frame.cs as u16, 0, 0, frame.ss as u16);
    let bit = |info, error| if frame.info & info != 0 { error } else { 0 };
    uc.err = USER | bit(device::INFO_WRITE, WRITE) | bit(device::INFO_FETCH, FETCH);
    uc.trapno = PAGE_FAULT;
    uc.oldmask = 0;
    uc.cr2 = frame.addr;
    upcall::software_bytes(uc.fpstate);
    if ours(frame.ip) {
        upcall::within_ourselves(t, uc, before);
    } else if let Some(mask) = t.own().direct_mask.take() {
        // A signal has struck before the frame was there.
        upcall::mask_known(t, uc, mask);
    }
    let mut info = SigInfo {
        signo: SIGSEGV,
        code: SEGV_ACCERR,
        ..SigInfo::zeroed()
    };
    info.data[0] = frame.addr;
    fault(t, SIGSEGV, &info, uc);
}
