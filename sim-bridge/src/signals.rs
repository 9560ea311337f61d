// SPDX-License-Identifier: GPL-2.0-or-later
//! Signals: handlers, masks, alternate stacks, frames as Linux lays them out. Where they come from: the
//! program's own instructions (faults, traps), its own kill and tgkill, and other processes, whose
//! signals the simulator's process receives in the program's stead (`processes.rs`).
//!
//! ```text
//!   sp ─▶ 0   restorer          what the handler returns to
//!         8   ucontext: flags, link, stack, registers (+40), trap, address, pointer to fpstate (+224),
//!             mask (+296)
//!       312   siginfo, 128 bytes
//!       440…  fpstate, 512 bytes as FXSAVE has them, aligned to 64
//! ```

use crate::bridge::registers::{ST, XMM};
use crate::machine::{End, State, Uc};
use crate::os::{EFAULT, EINVAL, ENOMEM, read_bytes, write_bytes};
use crate::threads::{Later, Wait};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use unicorn_engine::{RegisterX86 as R, uc_engine};

pub const SIGILL: u32 = 4;
pub const SIGTRAP: u32 = 5;
pub const SIGBUS: u32 = 7;
pub const SIGFPE: u32 = 8;
pub const SIGKILL: u32 = 9;
pub const SIGSEGV: u32 = 11;
const SIGCHLD: u32 = 17;

const SA_SIGINFO_RESTORER: u64 = 0x0400_0000;
const SA_ONSTACK: u64 = 0x0800_0000;
const SA_RESTART: u64 = 0x1000_0000;
const SA_NODEFER: u64 = 0x4000_0000;
const SA_RESETHAND: u64 = 0x8000_0000;

const FLAGS_CLEARED: u64 = 0x100 | 0x400 | 0x1_0000;
/// Of the flags those that a user may set.
const FLAGS_USER: u64 = 0x25_4dd5;

#[derive(Clone, Copy, Default)]
pub struct Action {
    pub handler: u64,
    flags: u64,
    restorer: u64,
    mask: u64,
}

/// siginfo's first words: code, and what follows it.
#[derive(Clone, Copy, Default)]
pub struct Info {
    pub code: i32,
    /// The address of a fault; the sender's process and user else.
    pub value: u64,
    pub trap: u64,
    /// Of a page fault: 1 forbidden (else not mapped), 2 a store, 4 by the user, 16 a fetch.
    pub error: u64,
}

pub struct Signals {
    pub actions: [Action; 65],
    /// To the process as a whole.
    pub pending: u64,
    info: [Info; 65],
}

impl Default for Signals {
    fn default() -> Signals {
        Signals {
            actions: [Action::default(); 65],
            pending: 0,
            info: [Info::default(); 65],
        }
    }
}

/// Signals that this process has received, and the machine that is to stop for them.
static RECEIVED: AtomicU64 = AtomicU64::new(0);
static MACHINE: AtomicPtr<uc_engine> = AtomicPtr::new(std::ptr::null_mut());

extern "C" fn received(signal: i32) {
    RECEIVED.fetch_or(1 << (signal - 1), Ordering::SeqCst);
    let machine = MACHINE.load(Ordering::SeqCst);
    if !machine.is_null() {
        STOPPED.store(true, Ordering::SeqCst);
        // SAFETY: it is there as long as its address is here. All it does is to set two flags.
        unsafe { unicorn_engine::uc_emu_stop(machine) };
    }
}

static STOPPED: AtomicBool = AtomicBool::new(false);

/// Has a signal stopped the machine since the last look?
pub fn has_stopped() -> bool {
    STOPPED.swap(false, Ordering::SeqCst)
}

pub fn has_received() -> bool {
    RECEIVED.load(Ordering::Relaxed) != 0
}

/// The machine looks for signals by itself from now on. (Stopped between two instructions that have hooks,
/// Unicorn may go on at the one before.)
pub fn polled() {
    MACHINE.store(std::ptr::null_mut(), Ordering::SeqCst);
}

/// Signals of this process are the machine's from now on.
pub fn adopt(machine: *mut uc_engine) {
    MACHINE.store(machine, Ordering::SeqCst);
}

/// Signals that instructions of the program raise; this process's own are bugs.
fn is_synchronous(signal: u32) -> bool {
    matches!(signal, SIGILL | SIGTRAP | SIGBUS | SIGFPE | SIGSEGV)
}

fn ignored_by_default(signal: u32) -> bool {
    matches!(signal, SIGCHLD | 18 | 23 | 28)
}

pub fn bit(signal: u32) -> u64 {
    1 << (signal - 1)
}

/// What the process has received becomes pending.
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
fn mirror(s: &State, signal: u32) {
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
fn mirror_mask(s: &State) {
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

/// Does a signal end the wait of this thread?
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

const GENERAL: [R; 17] = [
    R::R8,
    R::R9,
    R::R10,
    R::R11,
    R::R12,
    R::R13,
    R::R14,
    R::R15,
    R::RDI,
    R::RSI,
    R::RBP,
    R::RBX,
    R::RDX,
    R::RAX,
    R::RCX,
    R::RSP,
    R::RIP,
];
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

fn on(stack: (u64, u64), sp: u64) -> bool {
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
    for (n, r) in GENERAL.into_iter().enumerate() {
        put(48 + 8 * n, get(uc, r));
    }
    put(184, get(uc, R::EFLAGS));
    put(192, 0x33 | 0x2b << 48);
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
    let flags = get(uc, R::EFLAGS) & !FLAGS_CLEARED;
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
        let _ = uc.reg_write(R::RAX, crate::os::EINTR as u64);
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
    for (n, r) in GENERAL.into_iter().enumerate() {
        let _ = uc.reg_write(r, word(48 + 8 * n));
    }
    let _ = uc.reg_write(R::EFLAGS, word(184) & FLAGS_USER | 0x202);
    if let Ok(fp) = uc.mem_read_as_vec(word(232), 512) {
        restore_fpstate(uc, &fp);
    }
    s.thread().mask = word(304) & !(bit(SIGKILL) | bit(19));
    mirror_mask(s);
    s.attention = 0;
    Ok(())
}

/// rt_sigaction.
pub fn action(uc: &mut Uc, s: &mut State, a: &[u64; 6]) -> Result<i64, i64> {
    let (signal, new, old) = (a[0] as u32, a[1], a[2]);
    if !(1..=64).contains(&signal) || a[3] != 8 || (new != 0 && matches!(signal, 9 | 19)) {
        return Err(EINVAL);
    }
    let was = s.signals.actions[signal as usize];
    if old != 0 {
        let bytes = [was.handler, was.flags, was.restorer, was.mask].map(u64::to_le_bytes);
        write_bytes(uc, s, old, &bytes.concat())?;
    }
    if new != 0 {
        let bytes = read_bytes(uc, s, new, 32)?;
        let word =
            |n: usize| u64::from_le_bytes(bytes[8 * n..8 * n + 8].try_into().unwrap_or_default());
        s.signals.actions[signal as usize] = Action {
            handler: word(0),
            flags: word(1),
            restorer: word(2),
            mask: word(3) & !(bit(SIGKILL) | bit(19)),
        };
        mirror(s, signal);
        // A handler of faults has to find the state before the instruction.
        s.want_hooks |= word(0) > 1 && is_synchronous(signal);
    }
    Ok(0)
}

/// rt_sigprocmask.
pub fn mask(uc: &mut Uc, s: &mut State, a: &[u64; 6]) -> Result<i64, i64> {
    if a[3] != 8 {
        return Err(EINVAL);
    }
    let was = s.thread().mask;
    if a[1] != 0 {
        let set = set_at(uc, s, a[1])?;
        s.thread().mask = match a[0] {
            0 => was | set,
            1 => was & !set,
            2 => set,
            _ => return Err(EINVAL),
        };
        mirror_mask(s);
        s.attention = 0;
    }
    if a[2] != 0 {
        write_bytes(uc, s, a[2], &was.to_le_bytes())?;
    }
    Ok(0)
}

fn set_at(uc: &Uc, s: &mut State, at: u64) -> Result<u64, i64> {
    let bytes = read_bytes(uc, s, at, 8)?;
    let set = u64::from_le_bytes(bytes.try_into().map_err(|_| EFAULT)?);
    Ok(set & !(bit(SIGKILL) | bit(19)))
}

/// rt_sigsuspend, and pause (which keeps the mask).
pub fn suspend(uc: &Uc, s: &mut State, at: Option<u64>) -> Result<Later, i64> {
    if let Some(at) = at {
        let set = set_at(uc, s, at)?;
        let was = s.thread().mask;
        s.thread().suspended.get_or_insert(was);
        s.thread().mask = set;
        mirror_mask(s);
    }
    Ok(Later::Again(Wait::Outside))
}

/// rt_sigpending.
pub fn pending(uc: &mut Uc, s: &mut State, to: u64) -> Result<i64, i64> {
    collect(s);
    let set = (s.signals.pending | s.thread().pending) & s.thread().mask;
    write_bytes(uc, s, to, &set.to_le_bytes())?;
    Ok(0)
}

/// sigaltstack.
pub fn alternate(uc: &mut Uc, s: &mut State, new: u64, old: u64) -> Result<i64, i64> {
    let was = s.thread().alternate;
    let on_it = on(was, uc.reg_read(R::RSP).unwrap_or(0));
    if old != 0 {
        let flags = match was.1 {
            0 => 2u64,
            _ => u64::from(on_it),
        };
        let bytes = [was.0, flags, was.1].map(u64::to_le_bytes).concat();
        write_bytes(uc, s, old, &bytes)?;
    }
    if new != 0 {
        let bytes = read_bytes(uc, s, new, 24)?;
        let word =
            |n: usize| u64::from_le_bytes(bytes[8 * n..8 * n + 8].try_into().unwrap_or_default());
        if on_it {
            return Err(crate::os::EPERM);
        }
        s.thread().alternate = match word(1) as u32 & 3 {
            2 => (0, 0),
            _ if word(2) < 2048 => return Err(ENOMEM),
            _ => (word(0), word(2)),
        };
    }
    Ok(0)
}
