//! How a thread parks and continues.

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering::*};

use linux_raw_sys::general as k;
use ulpf_lib::eflags;
use ulpf_lib::sync::futex;
use ulpf_lib::sync::stop_the_world::{self, Futexes};
use ulpf_lib::sys;
use ulpf_lib::sys::uapi::arch::*;

use super::areas;
use super::deferred;
use super::events::{Event, Request};
use super::frame::{SigInfo, UContext};
use super::memory;
use super::thread::{Current, State, Thread};
use super::tracer;
use crate::global::{g, machine};
use crate::runtime::events::Resume;
use crate::signals::numbers::{SIG_DFL, SIG_IGN};
use crate::signals::{delivery, kernel, leaving, masks};

/// Waiting and waking by futex(2), for the protocol of `ulpf_lib::sync::stop_the_world`.
pub struct Futex;

impl Futexes<AtomicU32> for Futex {
    fn wait(&self, word: &AtomicU32, seen: u32) {
        futex::wait(word, seen);
    }
    fn wake(&self, word: &AtomicU32) {
        futex::wake_all(word);
    }
}

/// The processor on which the stub's task runs; -1 while it sleeps. (A hint.)
pub static AWAKE_ON: AtomicI32 = AtomicI32::new(-1);

/// As [`Futex`], for a thread that waits for an answer. While the stub's task runs on another processor, the answer is likely
/// to come sooner than a sleeping thread would run again.
struct Answer;

impl Futexes<AtomicU32> for Answer {
    fn wait(&self, word: &AtomicU32, seen: u32) {
        /// Some tens of microseconds.
        const LOOKS: u32 = 2000;
        let here = processor();
        for _ in 0..LOOKS {
            if word.load(Relaxed) != seen {
                return;
            }
            if [-1, here].contains(&AWAKE_ON.load(Relaxed)) {
                break;
            }
            core::hint::spin_loop();
        }
        Futex.wait(word, seen);
    }
    fn wake(&self, word: &AtomicU32) {
        Futex.wake(word);
    }
}

/// Wakes the stub's task for an event.
pub fn notify() {
    stop_the_world::notify(&g().event, &Futex);
}

fn read_bases(t: Current) {
    let (mut fs, mut gs) = (0u64, 0u64);
    // SAFETY: plain reads of this thread's own bases.
    unsafe {
        if machine().fsgsbase {
            core::arch::asm!("rdfsbase {}", out(reg) fs, options(nomem, nostack));
            core::arch::asm!("rdgsbase {}", out(reg) gs, options(nomem, nostack));
        } else {
            let _ = sys!(k::__NR_arch_prctl, ARCH_GET_FS, &mut fs as *mut u64);
            let _ = sys!(k::__NR_arch_prctl, ARCH_GET_GS, &mut gs as *mut u64);
        }
    }
    let gs = areas::program_gs(t, gs);
    t.fs_base.store(fs, Relaxed);
    t.gs_base.store(gs, Relaxed);
    if gs != 0 {
        areas::GS_TAKEN.store(true, Relaxed);
    }
    t.bases_dirty.store(false, Relaxed);
}

fn write_bases(t: Current) {
    if t.bases_dirty.load(Relaxed) {
        t.bases_dirty.store(false, Relaxed);
        // SAFETY: the debugger set them for this thread.
        unsafe {
            let _ = sys!(k::__NR_arch_prctl, ARCH_SET_FS, t.fs_base.load(Relaxed));
            let _ = sys!(k::__NR_arch_prctl, ARCH_SET_GS, t.gs_base.load(Relaxed));
        }
    }
}

/// (fs base, gs base) of the calling thread.
pub fn bases(t: Current) -> (u64, u64) {
    read_bases(t);
    (t.fs_base.load(Relaxed), t.gs_base.load(Relaxed))
}

/// The number of the current processor, or -1 if it is not known. User space finds it without a call (vDSO getcpu): the
/// limit of a special segment has the number in its lower 12 bits.
pub fn processor() -> i32 {
    const CPUNODE_SELECTOR: u32 = 15 << 3 | 3;
    let (limit, there): (u32, u8);
    // SAFETY: reads a descriptor of the global table.
    unsafe {
        core::arch::asm!(
            "lsl {limit:e}, {selector:e}",
            "setz {there}",
            selector = in(reg) CPUNODE_SELECTOR,
            limit = lateout(reg) limit,
            there = lateout(reg_byte) there,
            options(nomem, nostack),
        );
    }
    match there {
        0 => -1,
        _ => (limit & 0xfff) as i32,
    }
}

/// Parks until the stub's task lets the thread continue, then applies the debugger's order.
pub fn park(t: Current, uc: &mut UContext, event: Event) {
    if t.has_left() {
        return;
    }
    masks::close(t, uc);
    let own = steps_itself(t, uc);
    let mut event = event;
    loop {
        read_bases(t);
        t.core.store(processor(), Relaxed);
        let i = t.own();
        i.event.set(event);
        i.resume.set(Resume::Continue { signal: None });
        t.ctx.store(uc, Release);
        t.gate().rest(State::Parked, &g().event, &Futex);
        write_bases(t);
        follow_area(t);
        kernel::refresh_if_due(t);
        match after_park(t, uc, own) {
            Some(next) => event = next,
            None => return,
        }
    }
}

/// Applies `Own::resume` to the context. Returns `Some` if the thread must park again at once.
fn after_park(t: Current, uc: &mut UContext, own: bool) -> Option<Event> {
    let i = t.own();
    i.event.set(Event::None);
    if t.leaving.load(Relaxed) {
        set_tf(uc, own);
        leaving::leave(t, uc);
        return None;
    }
    let (signal, step) = match i.resume.get() {
        Resume::Hold => (None, false),
        Resume::Continue { signal } => (signal, false),
        Resume::Step { signal } => (signal, true),
        Resume::RangeStep { start, end } => {
            t.set_range((start.0, end.0));
            (None, true)
        }
    };
    if !matches!(i.resume.get(), Resume::RangeStep { .. }) {
        t.set_range((0, 0));
    }
    t.stepping.store(step, Relaxed);
    // A handler's frame has the program's own flag, not the debugger's.
    set_tf(uc, own);
    if let Some(n) = signal.filter(|_| t.orig_rax.load(Relaxed) != -1) {
        // In the middle of a system call there is no frame yet to return to.
        order_signal(&t, n);
    } else if let Some(n) = signal {
        let stopped_for = i.info.get();
        let info = match stopped_for.signo == n {
            true => stopped_for,
            false => sent_by_debugger(t, n),
        };
        if delivery::deliver(t, uc, n, &info) && step {
            // As ptrace does: a step with a signal ends at the handler's first instruction.
            t.stepping.store(false, Relaxed);
            return Some(Event::Stepped);
        }
    }
    if step {
        set_tf(uc, true);
    }
    None
}

/// Sends a signal in the debugger's name to a thread in a system call, and interrupts the call as any signal would.
pub fn order_signal(t: &Thread, signo: i32) {
    // An ignored signal never arrives, and the next one with its number would be mistaken for it.
    let ignored = match g().actions.get(signo).handler {
        SIG_IGN => true,
        SIG_DFL => kernel::default_is_ignore(signo),
        _ => false,
    };
    if ignored {
        return;
    }
    t.ordered_signal.store(signo, SeqCst);
    // SAFETY: no pointers.
    let _ = unsafe { sys!(k::__NR_tgkill, t.tgid(), t.tid(), signo) };
}

/// A signal that the debugger has made up, in the form of one sent by kill(2) from within the program (SI_USER).
pub fn sent_by_debugger(t: Current, signo: i32) -> SigInfo {
    let mut info = SigInfo {
        signo,
        ..SigInfo::zeroed()
    };
    // si_pid, and si_uid 0.
    info.data[0] = t.tgid() as u64;
    info
}

/// True if the trap flag is the program's own.
pub fn steps_itself(t: Current, uc: &UContext) -> bool {
    let i = t.own();
    match i.own_step.get() {
        Some(step) => step.tf,
        None => !t.stepping.load(Relaxed) && uc.gprs.rflags & eflags::TF != 0,
    }
}

/// Ends the debugger's step.
pub fn end_step(t: Current, uc: &mut UContext) {
    if t.stepping.swap(false, Relaxed) {
        set_tf(uc, false);
    }
}

pub fn set_tf(uc: &mut UContext, on: bool) {
    if on {
        uc.gprs.rflags |= eflags::TF;
    } else {
        uc.gprs.rflags &= !eflags::TF;
    }
}

/// No task serves requests any more: it has failed, and the threads continue without it.
static UNATTENDED: AtomicBool = AtomicBool::new(false);

/// Turns requests off. The caller answers those that wait.
pub fn unattended() {
    UNATTENDED.store(true, SeqCst);
}

/// Hands `r` to the stub's task and waits until it is served. Returns at once if that task has failed, or has released
/// the thread.
pub fn request(t: Current, uc: &mut UContext, r: Request) {
    if tracer::holds(t) && deferred::put_off(t, r) {
        return;
    }
    if UNATTENDED.load(SeqCst) || t.has_left() {
        return;
    }
    masks::close(t, uc);
    read_bases(t);
    t.own().request.set(r);
    t.ctx.store(uc, Release);
    t.gate().rest(State::Requesting, &g().event, &Answer);
    follow_area(t);
}

/// Registers a thread's area for restartable sequences again. The kernel knows the area by its alias. If the memory has
/// been moved back meanwhile, the kernel has written to an unused page of our file so far.
fn follow_area(t: Current) {
    let area = &t.sequences;
    let known = area.known();
    if known != 0 {
        let now = memory::reachable(area.at());
        if now != known && area.withdraw() == 0 {
            area.tell(now);
        }
    }
}

/// The program has met a limit that it would not meet without us. Informs the user once, and before the thread
/// continues: the program may end then, or become another one.
pub fn tell(t: Current, uc: &mut UContext, met: &AtomicBool) {
    if !met.swap(true, SeqCst) {
        request(t, uc, Request::Tell);
    }
}

/// The thread is about to make a system call of the program that may block for ever.
pub fn enter_syscall(t: Current, uc: &mut UContext) {
    kernel::refresh_if_due(t);
    read_bases(t);
    t.ctx.store(uc, Release);
    t.set_state(State::InSyscall);
}

/// The call has returned: parks if the world has been stopped meanwhile.
pub fn leave_syscall(t: Current, uc: &mut UContext) {
    follow_area(t);
    if t.untrap.load(Relaxed) {
        t.untrap.store(false, Relaxed);
        set_tf(uc, false);
    }
    let stopped = !t.gate().may_run(State::InSyscall, &g().world);
    if stopped && !tracer::holds(t) || t.hold.load(SeqCst) {
        park(t, uc, Event::None);
    }
}
