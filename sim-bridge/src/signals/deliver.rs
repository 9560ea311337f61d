// SPDX-License-Identifier: GPL-2.0-or-later
//! From a pending signal to its handler, and back.

use super::*;
use crate::errno::EINTR;
use crate::registers::{SIGCONTEXT, ST, USER_CS, USER_DS, XMM};
use crate::state::{End, State, Uc};
use crate::threads::Wait;
use crate::user_memory::write_bytes;
use ulpf_lib::eflags;
use unicorn_engine::RegisterX86 as R;

/// Makes signals that the process has received pending.
pub fn collect(s: &mut State) {
    let new = RECEIVED.swap(0, Ordering::SeqCst);
    s.signals.pending |= new;
}

/// Signals that the program ignores, which an exec does not change.
pub fn ignored(s: &State) -> u64 {
    let all = (1..=64).filter(|&n| s.signals.actions[n as usize].handler == 1);
    all.fold(0, |set, n| set | bit(n))
}

pub fn ignore(s: &mut State, set: u64) {
    for n in (1..=64).filter(|&n| set & bit(n) != 0) {
        s.signals.actions[n as usize].handler = 1;
        if n < 32 {
            mirror(s, n);
        }
    }
    mirror_mask(s);
}

/// The action of this process for a signal that others may send: it is the program's.
pub(super) fn mirror(s: &State, signal: u32) {
    if !s.processes || is_synchronous(signal) {
        return;
    }
    let how = match s.signals.actions[signal as usize].handler {
        0 => libc::SIG_DFL,
        1 => libc::SIG_IGN,
        _ => received as *const () as usize,
    };
    // SAFETY: the handler does what a handler may.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = how;
        libc::sigaction(signal as i32, &raw const action, std::ptr::null_mut());
    }
}

/// And so is its mask: what a blocked signal does by default has to wait.
pub(super) fn mirror_mask(s: &State) {
    if !s.processes {
        return;
    }
    let all = s.threads.iter().fold(u64::MAX, |m, t| m & t.mask);
    // SAFETY: sets of our own.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for n in (1..32).filter(|&n| all & bit(n) != 0 && !is_synchronous(n)) {
            libc::sigaddset(&raw mut set, n as i32);
        }
        libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
    }
}

/// The program's own: to a thread of it, or to all of it.
pub fn send(s: &mut State, thread: Option<usize>, signal: u32, info: Info) {
    s.signals.info[signal as usize] = info;
    match thread {
        Some(n) => s.threads[n].pending |= bit(signal),
        None => s.signals.pending |= bit(signal),
    }
    s.attention = 0;
}

/// Whether a signal ends the wait of this thread.
pub fn wakes(s: &mut State, n: usize) -> bool {
    let t = &s.threads[n];
    let ready = (t.pending | s.signals.pending) & !t.mask;
    let wanted = (1..=64).filter(|&k| ready & bit(k) != 0).any(|k| {
        let handler = s.signals.actions[k as usize].handler;
        handler > 1 || (handler == 0 && !ignored_by_default(k))
    });
    if wanted {
        s.interrupted = s.threads[n].wait != Wait::No;
        s.interrupt_wait(n);
    }
    wanted
}

/// Between two instructions: the current thread's signals come to their handlers.
pub(crate) fn deliver(uc: &mut Uc, s: &mut State) -> Result<(), End> {
    loop {
        let t = &s.threads[s.current];
        let ready = (t.pending | s.signals.pending) & !t.mask;
        if ready == 0 {
            return Ok(());
        }
        let signal = ready.trailing_zeros() + 1;
        s.thread().pending &= !bit(signal);
        s.signals.pending &= !bit(signal);
        let action = s.signals.actions[signal as usize];
        let info = std::mem::take(&mut s.signals.info[signal as usize]);
        match action.handler {
            1 => {}
            0 if ignored_by_default(signal) => {}
            0 => {
                return Err(End::Signal(
                    signal as i32,
                    "the program has no handler for it".into(),
                ));
            }
            _ => enter(uc, s, signal, info)?,
        }
    }
}

/// An instruction's own signal: it cannot wait.
pub(crate) fn raise(
    uc: &mut Uc,
    s: &mut State,
    signal: u32,
    info: Info,
    why: String,
) -> Result<(), End> {
    let blocked = s.thread().mask & bit(signal) != 0;
    if s.signals.actions[signal as usize].handler < 2 || blocked {
        return Err(End::Signal(signal as i32, why));
    }
    enter(uc, s, signal, info)
}

fn fpstate(uc: &Uc) -> Vec<u8> {
    let mut image = vec![0; 512];
    let get = |r| uc.reg_read(r).unwrap_or(0);
    image[..2].copy_from_slice(&(get(R::FPCW) as u16).to_le_bytes());
    image[2..4].copy_from_slice(&(get(R::FPSW) as u16).to_le_bytes());
    // FXSAVE's tag is a bit for each register that is not empty.
    let tags = get(R::FPTAG);
    image[4] = (0..8).fold(0, |b, n| b | u8::from(tags >> (2 * n) & 3 != 3) << n);
    image[24..28].copy_from_slice(&(get(R::MXCSR) as u32).to_le_bytes());
    image[28..32].copy_from_slice(&0xffffu32.to_le_bytes());
    for (at, r) in (32..)
        .step_by(16)
        .zip(ST)
        .chain((160..).step_by(16).zip(XMM))
    {
        if let Ok(bytes) = uc.reg_read_long(r) {
            let len = bytes.len().min(16);
            image[at..at + len].copy_from_slice(&bytes[..len]);
        }
    }
    image
}

fn restore_fpstate(uc: &mut Uc, image: &[u8]) {
    let short = |at: usize| u64::from(u16::from_le_bytes([image[at], image[at + 1]]));
    let _ = uc.reg_write(R::FPCW, short(0));
    let _ = uc.reg_write(R::FPSW, short(2));
    let tags = (0..8).fold(0, |t, n| {
        t | ((u64::from(image[4] >> n & 1 == 0) * 3) << (2 * n))
    });
    let _ = uc.reg_write(R::FPTAG, tags);
    let mxcsr = u32::from_le_bytes([image[24], image[25], image[26], image[27]]) & 0xffbf;
    let _ = uc.reg_write(R::MXCSR, mxcsr.into());
    for (at, r) in (32..).step_by(16).zip(ST) {
        let _ = uc.reg_write_long(r, &image[at..at + 10]);
    }
    for (at, r) in (160..).step_by(16).zip(XMM) {
        let _ = uc.reg_write_long(r, &image[at..at + 16]);
    }
}

pub(super) fn on(stack: (u64, u64), sp: u64) -> bool {
    sp > stack.0 && sp - stack.0 <= stack.1
}

/// Enters a handler: its frame, its registers, its mask.
fn enter(uc: &mut Uc, s: &mut State, signal: u32, info: Info) -> Result<(), End> {
    let action = s.signals.actions[signal as usize];
    let waited = std::mem::take(&mut s.thread().again) | std::mem::take(&mut s.interrupted);
    if waited && action.flags & SA_RESTART == 0 {
        // Behind its instruction again, with EINTR.
        interrupt_call(uc);
    }
    let get = |uc: &Uc, r| uc.reg_read(r).unwrap_or(0);
    let (sp, alternate) = (get(uc, R::RSP), s.thread().alternate);
    let top = match action.flags & SA_ONSTACK != 0 && alternate.1 != 0 && !on(alternate, sp) {
        true => alternate.0 + alternate.1,
        false => sp.wrapping_sub(128),
    };
    let fp = top.wrapping_sub(512) & !63;
    let frame = (fp.wrapping_sub(440) & !15).wrapping_sub(8);
    let mask = s.thread().suspended.take().unwrap_or(s.thread().mask);
    let mut image = vec![0u8; 440];
    let mut put = |at: usize, value: u64| image[at..at + 8].copy_from_slice(&value.to_le_bytes());
    put(0, action.restorer);
    put(8, 6);
    put(24, alternate.0);
    put(32, if alternate.1 == 0 { 2 } else { 0 });
    put(40, alternate.1);
    for (n, r) in SIGCONTEXT.into_iter().enumerate() {
        put(48 + 8 * n, get(uc, r));
    }
    put(184, get(uc, R::EFLAGS));
    put(192, USER_CS | USER_DS << 48);
    put(200, info.error);
    put(208, info.trap);
    put(216, mask);
    put(224, if info.trap == 14 { info.value } else { 0 });
    put(232, fp);
    put(304, mask);
    put(312, signal.into());
    put(320, info.code as u32 as u64);
    put(328, info.value);
    let fits =
        write_bytes(uc, s, frame, &image).is_ok() && write_bytes(uc, s, fp, &fpstate(uc)).is_ok();
    if !fits || action.flags & SA_SIGINFO_RESTORER == 0 {
        return Err(End::Signal(
            SIGSEGV as i32,
            format!("no room for the frame of signal {signal} at {frame:#x}"),
        ));
    }
    let flags = get(uc, R::EFLAGS) & !eflags::CLEAR_IN_HANDLER;
    for (r, value) in [
        (R::RDI, signal.into()),
        (R::RSI, frame + 312),
        (R::RDX, frame + 8),
        (R::RAX, 0),
        (R::RSP, frame),
        (R::EFLAGS, flags),
        (R::RIP, action.handler),
    ] {
        let _ = uc.reg_write(r, value);
    }
    let own = if action.flags & SA_NODEFER == 0 {
        bit(signal)
    } else {
        0
    };
    s.thread().mask = mask | action.mask | own;
    mirror_mask(s);
    if action.flags & SA_RESETHAND != 0 {
        s.signals.actions[signal as usize] = Action::default();
        mirror(s, signal);
    }
    Ok(())
}

/// A call that was to be made again ends with EINTR instead.
fn interrupt_call(uc: &mut Uc) {
    let pc = uc.reg_read(R::RIP).unwrap_or(0);
    let mut code = [0; 2];
    if uc.mem_read(pc, &mut code).is_ok() && code == [0x0f, 0x05] {
        let _ = uc.reg_write(R::RIP, pc + 2);
        let _ = uc.reg_write(R::RAX, EINTR as u64);
    }
}

/// rt_sigreturn: the handler has returned through its restorer.
pub(crate) fn returned(uc: &mut Uc, s: &mut State) -> Result<(), End> {
    let sp = uc.reg_read(R::RSP).unwrap_or(0);
    let Ok(image) = uc.mem_read_as_vec(sp, 304) else {
        return Err(End::Signal(
            SIGSEGV as i32,
            format!("no signal frame at {sp:#x}"),
        ));
    };
    let word = |at: usize| u64::from_le_bytes(image[at - 8..at].try_into().unwrap_or_default());
    for (n, r) in SIGCONTEXT.into_iter().enumerate() {
        let _ = uc.reg_write(r, word(48 + 8 * n));
    }
    let _ = uc.reg_write(
        R::EFLAGS,
        word(184) & (eflags::USER | eflags::RF) | eflags::INITIAL,
    );
    if let Ok(fp) = uc.mem_read_as_vec(word(232), 512) {
        restore_fpstate(uc, &fp);
    }
    s.thread().mask = word(304) & !(bit(SIGKILL) | bit(SIGSTOP));
    mirror_mask(s);
    s.attention = 0;
    Ok(())
}
