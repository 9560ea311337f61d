//! One fault: whose is it, what does the instruction touch, who is told, and the access itself.
//!
//! ```text
//! fault ─▶ a guard of ours? ─▶ the thesis's handler ─▶ accesses ─▶ old values ─▶ perform through
//!            │ no                (before the access)                             the alias ─▶ hits
//!            ▼                                                                    ─▶ watches' handlers
//!   the program's own handler                                                        (after it)
//! ```
//! Rules of this file, `hits.rs` and `slow.rs`: no allocation, no lock but `enter`, no libc but around the
//! program's own functions, no thread-local storage, no panics. errno is kept.

use core::sync::atomic::Ordering::*;

use linux_raw_sys::general as k;
use ulpf_engine::access::AccessList;
use ulpf_engine::cpu::Cpu;
use ulpf_engine::exec::{FaultInfo, Outcome};
use ulpf_engine::frame::{SigInfo, UContext, fpstate_len};
use ulpf_lib::guard::Fault;
use ulpf_lib::sys;
use ulpf_lib::{AccessKind, PAGE_SIZE, TargetAddr};

use crate::above;
use crate::backend::{self, Backend};
use crate::change;
use crate::hits::Pending;
use crate::keys;
use crate::registers;
use crate::shared::{Engine, S};
use crate::signals::{INSIDE, SIGSEGV, SIGTRAP, SYNCHRONOUS, chain, raise, to_myself};
use crate::slow;
use crate::stacks::Block;

/// `si_code` of a fault that a protection has caused.
const SEGV_ACCERR: i32 = 2;
const SEGV_MAPERR: i32 = 1;
/// Bits of the page-fault error code.
const WRITE: u64 = 2;
const FETCH: u64 = 16;
/// Iterations of a string instruction that one fault may serve, so that signals get their turn.
const MAX_REPEATS: u32 = 1 << 16;

/// The fault that the thesis's handler asks about.
pub struct FaultNow {
    pub addr: u64,
    /// The access touches watched bytes.
    pub watched: bool,
}

pub fn handle(signo: i32, info: &mut SigInfo, uc: &mut UContext) {
    let Some(b) = Block::holding(here()) else {
        // No stack to be had: only what is not ours can be dealt with.
        return chain(signo, info, uc);
    };
    let (sp, size) = b.signal_stack();
    if uc.stack.sp != sp {
        b.install();
        (uc.stack.sp, uc.stack.size, uc.stack.flags) = (sp, size, 0);
    }
    if !b.contains(uc.gprs.rsp) {
        b.outermost();
    }
    if b.puts_off(signo, info) {
        return;
    }
    let what = FaultInfo::of(info, uc);
    let Some(engine) = S.engine() else {
        return chain(signo, info, uc);
    };
    if info.by_kernel() && engine.thunks.recover(&mut uc.gprs, what) {
        return;
    }
    if signo == SIGTRAP && b.step().is_some() {
        return slow::finish(b, uc);
    }
    if signo == SIGTRAP && registers::trapped(b, uc, info) {
        return;
    }
    let guard = match info.code {
        SEGV_ACCERR | keys::SEGV_PKUERR => true,
        // What the device's mapping refuses looks as if nothing were there.
        SEGV_MAPERR => backend::is(Backend::Device),
        _ => false,
    };
    if signo == SIGSEGV && guard && uc.err & FETCH == 0 {
        if b.performing.load(Relaxed) != 0 && b.contains(uc.gprs.rsp) {
            overrun();
        }
        if serve(b, engine, uc, info) {
            return;
        }
    }
    slow::cancel(b, uc);
    chain(signo, info, uc);
}

pub fn here() -> u64 {
    let local = 0u8;
    &raw const local as u64
}

/// We have met a guard ourselves: statically linked, our data lies among the program's.
fn overrun() -> ! {
    let text = b"libulpf: a watch covers the library's own data, so a fault cannot be served; \
        link with libulpf.so instead of libulpf.a\n";
    // SAFETY: writes a constant, then ends the process.
    unsafe {
        let _ = sys!(k::__NR_write, 2, text.as_ptr(), text.len());
        let _ = kill_self();
    }
    loop {
        core::hint::spin_loop();
    }
}

/// # Safety
/// Ends the process.
unsafe fn kill_self() -> Result<u64, sys::Errno> {
    const SIGABRT: i32 = 6;
    let default = crate::signals::Action::default();
    let _ = crate::signals::kernel_action(SIGABRT, Some(&default));
    change::set_mask(0);
    // SAFETY: the caller's wish.
    unsafe { sys!(k::__NR_kill, sys!(k::__NR_getpid).unwrap_or(0), SIGABRT) }
}

/// `false`: the fault is the program's own.
fn serve(b: &mut Block, engine: &'static Engine, uc: &mut UContext, info: &SigInfo) -> bool {
    let mut at = TargetAddr(info.addr());
    let kind = if uc.err & WRITE != 0 {
        AccessKind::Write
    } else {
        AccessKind::Read
    };
    for repeat in 0..MAX_REPEATS {
        change::enter(b);
        if repeat == 0 {
            let verdict = S.door.pages.fault(at, kind);
            // Pages that we ourselves are changing may be guarded already and not say so yet.
            let ours =
                verdict == Fault::Stale && S.door.changer.load(Relaxed) == change::thread_pointer();
            if verdict != Fault::Guarded && !ours {
                change::leave(b);
                if info.code == keys::SEGV_PKUERR && keys::set_frame(uc, false) {
                    return true; // a thread that knew nothing of our keys
                }
                return again(b, uc.gprs.rip, at.0);
            }
            S.faults.fetch_add(1, Relaxed);
        }
        match one(b, engine, uc, &mut at, repeat) {
            Next::Done => return true,
            Next::Again => {}
            Next::Fault(what) => {
                uc.err = what.error;
                slow::cancel(b, uc);
                raise(what.signo, &what.siginfo(), uc);
                return true;
            }
        }
    }
    true
}

/// A fault that no guard explains may have been explained a moment ago: it is the program's own only if
/// it comes again and nothing has changed meanwhile.
fn again(b: &mut Block, pc: u64, addr: u64) -> bool {
    let now = (pc, addr, S.door.generation.load(SeqCst));
    let seen = b.foreign == now;
    b.foreign = if seen { (0, 0, 0) } else { now };
    !seen
}

pub enum Next {
    Done,
    Again,
    Fault(FaultInfo),
}

/// The instruction, or one iteration of it; between `enter` and (on return) `leave`.
fn one(
    b: &mut Block,
    engine: &'static Engine,
    uc: &mut UContext,
    at: &mut TargetAddr,
    repeat: u32,
) -> Next {
    let pc = uc.gprs.rip;
    let mut bytes = [0u8; 15];
    let n = code_at(pc, &mut bytes);
    let code = bytes.get(..n).unwrap_or(&[]);
    let Ok(site) = engine.thunks.site(&engine.decoder, pc, code) else {
        return slow::begin(b, uc, *at, None);
    };
    let (fs_base, gs_base) = (change::thread_pointer(), gs_base(code));
    // SAFETY: the frame's own image.
    let (_, xsave_len) = unsafe { fpstate_len(uc.fpstate) };
    let mut list = AccessList::new();
    let fpstate = uc.fpstate;
    let mut cpu = Cpu {
        gprs: &mut uc.gprs,
        fs_base,
        gs_base,
        xsave: fpstate,
        xsave_len,
    };
    site.insn.accesses(&cpu, &mut list);
    if list.overflowed() || !site.insn.accesses_known() {
        return slow::begin(b, uc, *at, None);
    }
    if repeat > 0 {
        let Some(guarded) = first_guarded(&list) else {
            change::leave(b);
            return Next::Done; // the rest runs by itself
        };
        *at = guarded;
        S.faults.fetch_add(1, Relaxed);
    }
    let mut pending = Pending::new(pc);
    pending.collect(&list);
    if !pending.watched {
        S.false_positives.fetch_add(1, Relaxed);
    }
    if S.user_handler.load(Acquire) != 0 {
        if b.depth > 0 {
            S.nested.fetch_add(1, Relaxed);
        } else {
            change::leave(b);
            ask(b, uc, at.0, pending.watched);
            change::enter(b);
            if first_guarded(&list).is_none() {
                // The handler has opened the page.
                change::leave(b);
                return Next::Done;
            }
            // It may have written to what the access is about to change.
            pending = Pending::new(pc);
            pending.collect(&list);
            cpu = Cpu {
                gprs: &mut uc.gprs,
                fs_base,
                gs_base,
                xsave: fpstate,
                xsave_len,
            };
        }
    }
    let kept = above::before(b, &list);
    match engine.thunks.execute(site, &mut cpu, &above::Map) {
        Outcome::NeedSlow(_) => slow::begin(b, uc, *at, Some(&list)),
        Outcome::Fault(what) => {
            change::leave(b);
            Next::Fault(what)
        }
        done => {
            pending.made();
            change::leave(b);
            let due = above::tell(b, pc, &raw const *uc as u64, &list, kept);
            let stop = tell(b, uc.sigmask, uc, &pending) || due;
            if matches!(done, Outcome::Repeat) && !stop {
                Next::Again
            } else {
                Next::Done
            }
        }
    }
}

/// The first byte that a guard forbids.
fn first_guarded(list: &AccessList) -> Option<TargetAddr> {
    let ends = list
        .iter()
        .flat_map(|a| [(a.addr.0, a.kind), (a.addr.0 + a.len - 1, a.kind)]);
    ends.map(|(at, kind)| (TargetAddr(at), kind))
        .find(|(at, kind)| S.door.pages.entry(*at).guards(*kind))
        .map(|(at, _)| at)
}

/// Copies up to 15 bytes of code, as many as can be read.
fn code_at(pc: u64, to: &mut [u8; 15]) -> usize {
    if above::present() {
        // Breakpoints and patches stand in the code.
        return above::copy(to.as_mut_ptr() as u64, pc, 15).unwrap_or(0) as usize;
    }
    // Code on guarded pages is readable at its alias; other code has just been fetched, but the page
    // behind it may not be there.
    let first = (PAGE_SIZE - pc % PAGE_SIZE).min(15) as usize;
    let source = |at: u64| {
        S.door
            .pages
            .entry(TargetAddr(at))
            .alias(TargetAddr(at))
            .map_or(at, |a| a.0)
    };
    let mut n = 0;
    if S.door.pages.entry(TargetAddr(pc)).moved() || first == 15 {
        // SAFETY: within one page that code has just been fetched from.
        unsafe { core::ptr::copy_nonoverlapping(source(pc) as *const u8, to.as_mut_ptr(), first) };
        n = first;
    }
    if n == 15 {
        return n;
    }
    // Across a page edge: the kernel finds out what is there.
    let rest = [(to.as_mut_ptr() as u64) + n as u64, 15 - n as u64];
    let remote = [source(pc.wrapping_add(n as u64)), 15 - n as u64];
    // SAFETY: the destination is ours.
    let copied = unsafe {
        sys!(k::__NR_getpid).and_then(|pid| {
            sys!(
                k::__NR_process_vm_readv,
                pid,
                rest.as_ptr(),
                1,
                remote.as_ptr(),
                1,
                0
            )
        })
    };
    match copied {
        Ok(got) if got > 0 => n + got as usize,
        // Forbidden (a sandbox): what lies in the first page will have to do.
        _ if n == 0 => {
            // SAFETY: as above.
            unsafe { core::ptr::copy_nonoverlapping(pc as *const u8, to.as_mut_ptr(), first) };
            first
        }
        _ => n,
    }
}

/// Only an instruction with a gs prefix needs it.
pub fn gs_base(code: &[u8]) -> u64 {
    const PREFIX: u8 = 0x65;
    const ARCH_GET_GS: u64 = 0x1004;
    let mut gs = 0u64;
    if code.contains(&PREFIX) {
        // SAFETY: one word.
        let _ = unsafe { sys!(k::__NR_arch_prctl, ARCH_GET_GS, &mut gs as *mut u64) };
    }
    gs
}

/// Runs a function of the program on the thread's exception stack, under the program's own mask.
fn outside(b: &mut Block, mask: u64, f: impl FnOnce()) {
    // SAFETY: the calling thread's errno, which the program's function may change.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let kept = unsafe { *errno };
    b.depth += 1;
    keys::set_own(false);
    change::set_mask(mask & !SYNCHRONOUS);
    f();
    change::set_mask(INSIDE);
    b.depth = b.depth.saturating_sub(1);
    // SAFETY: as above.
    unsafe { *errno = kept };
}

/// Calls the thesis's handler, before the access.
fn ask(b: &mut Block, uc: &UContext, addr: u64, watched: bool) {
    let handler = S.user_handler.load(Acquire);
    if handler == 0 {
        return;
    }
    let now = FaultNow { addr, watched };
    let before = b.fault;
    b.fault = &now;
    outside(b, uc.sigmask, || {
        // SAFETY: a function that the program has registered.
        let handler: extern "C" fn() = unsafe { core::mem::transmute(handler) };
        handler();
    });
    b.fault = before;
}

/// Calls the watches' handlers, after the access of a thread with this mask (and context, if a signal has
/// interrupted it). `true`: the thread is to stop now.
pub fn tell(b: &mut Block, mask: u64, context: *const UContext, pending: &Pending) -> bool {
    let nested = b.depth > 0;
    let context = context.cast();
    let stop = pending.report(nested, context, |handler, data, info| {
        let before = b.fault;
        let now = FaultNow {
            addr: info.addr,
            watched: true,
        };
        b.fault = &now;
        outside(b, mask, || handler(info, data as *mut core::ffi::c_void));
        b.fault = before;
    });
    b.stopping = stop;
    if stop {
        // Blocked until we return: so it arrives behind the instruction, where a debugger expects it.
        change::set_mask(INSIDE);
        to_myself(&SigInfo {
            signo: SIGTRAP,
            code: -1,
            ..SigInfo::zeroed()
        });
    }
    stop
}

/// The fault that the handler of the calling thread is about.
pub fn current() -> Option<&'static FaultNow> {
    let b = Block::holding(here())?;
    // SAFETY: lives on this stack while the handler runs.
    unsafe { b.fault.as_ref() }
}
