//! How a thread comes to rest and goes on.

use core::sync::atomic::Ordering::*;

use linux_raw_sys::general as k;
use ulpf_lib::sys;

use super::areas;
use super::events::{Event, Request};
use super::frame::UContext;
use super::thread::{State, Thread};
use crate::global::{g, machine};
use crate::runtime::events::Resume;
use crate::signals::{delivery, kernel, leaving, masks};

const FUTEX_WAIT: u32 = 128;
const FUTEX_WAKE: u32 = 1 | 128;

/// FUTEX_PRIVATE keys are per address space, which the stub's task shares.
pub fn futex_wait(word: &core::sync::atomic::AtomicU32, seen: u32) {
    // SAFETY: a live word.
    let _ = unsafe { sys!(k::__NR_futex, word as *const _, FUTEX_WAIT, seen, 0) };
}

pub fn futex_wake(word: &core::sync::atomic::AtomicU32) {
    // SAFETY: a live word.
    let _ = unsafe { sys!(k::__NR_futex, word as *const _, FUTEX_WAKE, i32::MAX) };
}

/// Tells the stub's task that something has happened.
pub fn notify() {
    g().event.fetch_add(1, SeqCst);
    futex_wake(&g().event);
}

fn read_bases(t: &Thread) {
    let i = t.inner();
    // SAFETY: plain reads of this thread's own bases.
    unsafe {
        if machine().fsgsbase {
            core::arch::asm!("rdfsbase {}", out(reg) i.fs_base, options(nomem, nostack));
            core::arch::asm!("rdgsbase {}", out(reg) i.gs_base, options(nomem, nostack));
        } else {
            let (mut fs, mut gs) = (0u64, 0u64);
            let _ = sys!(k::__NR_arch_prctl, 0x1003, &mut fs as *mut u64);
            let _ = sys!(k::__NR_arch_prctl, 0x1004, &mut gs as *mut u64);
            i.fs_base = fs;
            i.gs_base = gs;
        }
    }
    i.gs_base = areas::program_gs(t, i.gs_base);
    if i.gs_base != 0 {
        areas::GS_TAKEN.store(true, Relaxed);
    }
    i.bases_dirty = false;
}

fn write_bases(t: &Thread) {
    let i = t.inner();
    if i.bases_dirty {
        i.bases_dirty = false;
        // SAFETY: the debugger set them for this thread.
        unsafe {
            let _ = sys!(k::__NR_arch_prctl, 0x1002, i.fs_base);
            let _ = sys!(k::__NR_arch_prctl, 0x1001, i.gs_base);
        }
    }
}

/// (fs base, gs base) of the calling thread.
pub fn bases(t: &Thread) -> (u64, u64) {
    read_bases(t);
    (t.inner().fs_base, t.inner().gs_base)
}

fn wait_go(t: &Thread) {
    while t.go.swap(0, SeqCst) == 0 {
        futex_wait(&t.go, 0);
    }
}

/// Rests until the stub's task lets the thread go on, then does what the debugger asked for.
pub fn park(t: &'static Thread, uc: &mut UContext, event: Event) {
    masks::close(t, uc);
    let own = steps_itself(t, uc);
    let mut event = event;
    loop {
        read_bases(t);
        let i = t.inner();
        i.event = event;
        i.resume = Resume::Continue { signal: None };
        t.ctx.store(uc, Release);
        t.set_state(State::Parked);
        notify();
        wait_go(t); // the waker has set Running
        write_bases(t);
        kernel::refresh_if_due(t);
        match after_park(t, uc, own) {
            Some(next) => event = next,
            None => return,
        }
    }
}

/// Applies `Inner::resume` to the context. `Some`: the thread has to rest again at once.
fn after_park(t: &'static Thread, uc: &mut UContext, own: bool) -> Option<Event> {
    let i = t.inner();
    i.event = Event::None;
    if i.leaving {
        set_tf(uc, own);
        leaving::leave(t, uc);
        return None;
    }
    let (signal, step) = match i.resume {
        Resume::Hold => (None, false),
        Resume::Continue { signal } => (signal, false),
        Resume::Step { signal } => (signal, true),
        Resume::RangeStep { start, end } => {
            i.range = (start.0, end.0);
            (None, true)
        }
    };
    if !matches!(i.resume, Resume::RangeStep { .. }) {
        i.range = (0, 0);
    }
    i.stepping = step;
    set_tf(uc, step || own);
    if let Some(n) = signal {
        let info = i.info;
        let entered = delivery::deliver(t, uc, n, &info);
        if step && entered {
            // As ptrace does: a step with a signal ends at the handler's first instruction.
            end_step(t, uc);
            return Some(Event::Stepped);
        }
    }
    None
}

/// The trap flag is the program's own.
pub fn steps_itself(t: &Thread, uc: &UContext) -> bool {
    let i = t.inner();
    match i.own_step {
        Some(step) => step.tf,
        None => !i.stepping && uc.gprs.rflags & 0x100 != 0,
    }
}

/// The debugger's step is over.
pub fn end_step(t: &Thread, uc: &mut UContext) {
    if core::mem::take(&mut t.inner().stepping) {
        set_tf(uc, false);
    }
}

pub fn set_tf(uc: &mut UContext, on: bool) {
    if on {
        uc.gprs.rflags |= 0x100;
    } else {
        uc.gprs.rflags &= !0x100;
    }
}

/// Hands `r` to the stub's task and waits until it is served.
pub fn request(t: &'static Thread, uc: &mut UContext, r: Request) {
    masks::close(t, uc);
    read_bases(t);
    t.inner().request = r;
    t.ctx.store(uc, Release);
    t.set_state(State::Requesting);
    notify();
    wait_go(t);
}

/// The thread is about to make a system call of unknown length for the program.
pub fn enter_syscall(t: &'static Thread, uc: &mut UContext) {
    kernel::refresh_if_due(t);
    read_bases(t);
    t.ctx.store(uc, Release);
    t.set_state(State::InSyscall);
}

/// Back from the call: rest if the world has been stopped meanwhile.
pub fn leave_syscall(t: &'static Thread, uc: &mut UContext) {
    if t.state
        .compare_exchange(
            State::InSyscall as u32,
            State::Running as u32,
            SeqCst,
            SeqCst,
        )
        .is_err()
        || g().world.load(SeqCst) != 0
        || t.hold.load(SeqCst)
    {
        park(t, uc, Event::None);
    }
}
