//! The program's signals. The kernel only ever sees our handlers, on our stacks; what the program
//! asked for (actions, masks, alternate stacks) is kept here and honoured by building its signal
//! frames ourselves.
//!
//! SIGSEGV, SIGBUS, SIGTRAP, SIGSYS and the park signal are never blocked in the kernel: a guarded
//! access, a breakpoint or a dispatched system call may come at any time, and a blocked synchronous
//! signal would kill the program. What the program believes about them is in `Inner::hidden`.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};

use linux_raw_sys::general as k;
use ulpf_lib::boot::PARK_SIGNAL;
use ulpf_lib::sys;
use ulpf_lib::sys::Errno;

use super::asm::*;
use super::debug_registers;
use super::frame::*;
use super::memory;
use super::park::{self, park};
use super::thread::{DEFERRED, Event, Events, OwnStepKind, Request, State, Thread};
use super::waiting;
use crate::library::{self, Whose};
use crate::patches::{self, Landing, Left};
use crate::syscalls::sites;
use crate::{direct, fault, g, syscalls, upcall};

pub const SIGTRAP: i32 = 5;
pub const SIGBUS: i32 = 7;
pub const SIGSEGV: i32 = 11;
pub const SIGSYS: i32 = 31;
pub const SIGCHLD: i32 = 17;
pub const SIGCONT: i32 = 18;
pub const SIGSTOP: i32 = 19;
pub const SIGKILL: i32 = 9;

pub const fn bit(sig: i32) -> u64 {
    1 << (sig - 1)
}
/// Never blocked in the kernel.
pub const HIDDEN: u64 = bit(SIGSEGV) | bit(SIGBUS) | bit(SIGTRAP) | bit(SIGSYS) | bit(PARK_SIGNAL);
/// Blocked while our handlers run: everything that is not synchronous.
pub const HANDLER_MASK: u64 =
    !(bit(SIGSEGV) | bit(SIGBUS) | bit(SIGTRAP) | bit(SIGSYS) | bit(4) | bit(8));
/// Cannot be blocked by anybody.
const UNBLOCKABLE: u64 = bit(SIGKILL) | bit(SIGSTOP);

const SIG_DFL: u64 = 0;
const SIG_IGN: u64 = 1;
pub const SA_NOCLDSTOP: u64 = 1;
pub const SA_NOCLDWAIT: u64 = 2;
const SA_SIGINFO: u64 = 4;
const SA_RESTORER: u64 = 0x0400_0000;
const SA_ONSTACK: u64 = 0x0800_0000;
const SA_RESTART: u64 = 0x1000_0000;
const SA_NODEFER: u64 = 0x4000_0000;
const SA_RESETHAND: u64 = 0x8000_0000;

/// `struct sigaction` as the kernel takes it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct KernelAction {
    pub handler: u64,
    pub flags: u64,
    pub restorer: u64,
    pub mask: u64,
}

/// What the program has asked for, per signal. Shared by all threads; a vfork child has its own.
pub struct ActionTable {
    taken: AtomicBool,
    /// Given back to the kernel, or about to be: nobody serves them any more.
    left: AtomicBool,
    given: AtomicBool,
    slots: UnsafeCell<[KernelAction; 65]>,
}

// SAFETY: `slots` is touched with `taken` held; holders run with asynchronous signals blocked.
unsafe impl Sync for ActionTable {}

impl ActionTable {
    pub const fn new() -> ActionTable {
        ActionTable {
            taken: AtomicBool::new(false),
            left: AtomicBool::new(false),
            given: AtomicBool::new(false),
            slots: UnsafeCell::new(
                [KernelAction {
                    handler: 0,
                    flags: 0,
                    restorer: 0,
                    mask: 0,
                }; 65],
            ),
        }
    }
    fn with<R>(&self, f: impl FnOnce(&mut [KernelAction; 65]) -> R) -> R {
        while self.taken.swap(true, Acquire) {
            core::hint::spin_loop();
        }
        // SAFETY: the lock is ours.
        let r = f(unsafe { &mut *self.slots.get() });
        self.taken.store(false, Release);
        r
    }
    pub fn get(&self, sig: i32) -> KernelAction {
        self.with(|s| s.get(sig as usize).copied().unwrap_or_default())
    }
    pub fn set(&self, sig: i32, a: KernelAction) {
        self.with(|s| {
            if let Some(slot) = s.get_mut(sig as usize) {
                *slot = a;
            }
        });
    }
    pub fn copy_from(&self, other: &ActionTable) -> *const ActionTable {
        let all = other.with(|s| *s);
        self.with(|s| *s = all);
        self
    }
    /// Whoever held it is no more, or has stayed behind in another process.
    pub fn let_go(&self) {
        self.taken.store(false, Release);
    }
    /// For another task than before.
    pub fn renew(&self) {
        self.let_go();
        self.left.store(false, Release);
        self.given.store(false, Release);
    }
    /// As exec does, and CLONE_CLEAR_SIGHAND: what is ignored stays so, the rest is default.
    pub fn clear_handlers(&self) {
        self.with(|all| {
            for a in all.iter_mut() {
                let handler = if a.handler == SIG_IGN {
                    SIG_IGN
                } else {
                    SIG_DFL
                };
                *a = KernelAction {
                    handler,
                    ..KernelAction::default()
                };
            }
        });
    }
}

fn actions(t: &Thread) -> &'static ActionTable {
    // SAFETY: tables are never freed.
    unsafe { &*t.inner().actions }
}

/// Does the program leave it to the kernel?
pub fn is_default(t: &Thread, sig: i32) -> bool {
    actions(t).get(sig).handler == SIG_DFL
}

fn raw_sigaction(sig: i32, new: &KernelAction) -> Result<u64, Errno> {
    // SAFETY: sets a handler of ours or the program's own disposition.
    unsafe { sys!(k::__NR_rt_sigaction, sig, new as *const KernelAction, 0, 8) }
}

fn default_is_ignore(sig: i32) -> bool {
    matches!(sig, SIGCHLD | SIGCONT | 23 | 28) // SIGURG, SIGWINCH
}
fn default_is_stop(sig: i32) -> bool {
    matches!(sig, 20..=22) // SIGTSTP, SIGTTIN, SIGTTOU
}

/// What the kernel is to have for `sig`, given what the program wants.
fn kernel_action(sig: i32, want: &KernelAction) -> Option<KernelAction> {
    if sig == SIGKILL || sig == SIGSTOP {
        return None;
    }
    let handler = match sig {
        SIGSEGV | SIGBUS => on_fault as *const () as u64,
        SIGTRAP => on_trap as *const () as u64,
        SIGSYS => on_sys as *const () as u64,
        PARK_SIGNAL => on_park as *const () as u64,
        _ => match want.handler {
            SIG_IGN => return Some(*want),
            SIG_DFL if default_is_ignore(sig) || g().pass_signals.load(Relaxed) & bit(sig) != 0 => {
                return Some(*want);
            }
            _ => on_signal as *const () as u64,
        },
    };
    let restart = match want.handler {
        SIG_DFL | SIG_IGN => SA_RESTART,
        _ => want.flags & SA_RESTART,
    };
    let restart = if sig == PARK_SIGNAL { 0 } else { restart };
    // The program's memory may fault once more while one fault is served.
    let nested = if matches!(sig, SIGSEGV | SIGBUS) {
        SA_NODEFER
    } else {
        0
    };
    Some(KernelAction {
        handler,
        flags: SA_SIGINFO
            | SA_ONSTACK
            | SA_RESTORER
            | restart
            | nested
            | (want.flags & (SA_NOCLDSTOP | SA_NOCLDWAIT)),
        restorer: ulpf_restorer as *const () as u64,
        // A guarded access is served under the program's own mask, so that the mask need not be
        // restored after it (`asm::ulpf_restorer`).
        mask: if sig == SIGSEGV { 0 } else { HANDLER_MASK },
    })
}

/// Reads the program's actions (they may be set already when we attach) and puts ours in place.
pub fn take_over() {
    for sig in 1..=64 {
        let mut old = KernelAction::default();
        // SAFETY: reads the present action.
        if unsafe {
            sys!(
                k::__NR_rt_sigaction,
                sig,
                0,
                &mut old as *mut KernelAction,
                8
            )
        }
        .is_ok()
        {
            g().actions.set(sig, old);
        }
    }
    refresh();
    library::look(g().actions.get(SIGSEGV).handler);
}

/// Installs what the kernel is to have; again whenever the debugger's pass set changes.
pub fn refresh() {
    for sig in 1..=64 {
        if let Some(a) = kernel_action(sig, &g().actions.get(sig)) {
            let _ = raw_sigaction(sig, &a);
        }
    }
}

/// The pass set has changed: the next program thread that goes on does what [`refresh`] does.
pub static REFRESH: AtomicBool = AtomicBool::new(false);

/// Threads that are in [`refresh_if_due`].
static REFRESHING: AtomicU32 = AtomicU32::new(0);

/// Called by a thread that goes on. (A vfork child has dispositions of its own, for as long as it lives.)
pub fn refresh_if_due(t: &Thread) {
    if REFRESH.load(SeqCst) && t.tgid() == g().pid.load(Relaxed) {
        REFRESHING.fetch_add(1, SeqCst);
        // Another thread may be giving the program its own actions back at this moment.
        if !actions(t).left.load(SeqCst) && REFRESH.swap(false, SeqCst) {
            refresh();
        }
        REFRESHING.fetch_sub(1, SeqCst);
    }
}

/// In a forked child, which begins without handlers if `clear`.
pub fn take_away(t: &Thread, clear: bool) {
    actions(t).let_go();
    if clear {
        actions(t).clear_handlers();
    }
    give_back(t, true);
}

/// Gives the kernel the program's own actions. `alone`: no park signal can be on its way.
fn give_back(t: &Thread, alone: bool) {
    for sig in 1..=64 {
        let mut a = actions(t).get(sig);
        if sig == PARK_SIGNAL && a.handler == SIG_DFL && !alone {
            a.handler = SIG_IGN; // until the last thread has left
        }
        if sig != SIGKILL && sig != SIGSTOP {
            let _ = raw_sigaction(sig, &a);
        }
    }
}

/// Makes the frame of a resting handler return to a program that knows nothing of us.
pub fn leave(t: &'static Thread, uc: &mut UContext) {
    let table = actions(t);
    if !table.left.swap(true, SeqCst) {
        while REFRESHING.load(SeqCst) != 0 {
            // SAFETY: no pointers.
            let _ = unsafe { sys!(k::__NR_sched_yield) };
        }
        library::left();
        give_back(t, false);
        table.given.store(true, SeqCst);
    }
    // Whoever is back in the program before that is done would be served by us once more, and rest for ever.
    while !table.given.load(SeqCst) {
        // SAFETY: no pointers.
        let _ = unsafe { sys!(k::__NR_sched_yield) };
    }
    drop_park_signals(t);
    let i = t.inner();
    // SAFETY: switches this thread's dispatch off; the rest of the way out makes only our own calls.
    let _ = unsafe { sys!(k::__NR_prctl, 59, 0, 0, 0, 0) };
    waiting::hand_over(t);
    patches::disable();
    if i.clear_tid != 0 {
        // The kernel may know the word by its alias, which is gone.
        // SAFETY: names the word that the program has named.
        let _ = unsafe { sys!(k::__NR_set_tid_address, i.clear_tid) };
    }
    uc.stack = i.alternate();
    uc.sigmask |= i.hidden;
    let last = shares_actions(t) && LEAVING.fetch_sub(1, SeqCst) == 1;
    let park = g().actions.get(PARK_SIGNAL);
    if last && park.handler == SIG_DFL {
        let _ = raw_sigaction(PARK_SIGNAL, &park);
    }
    t.set_state(State::Dead);
}

/// Threads that have yet to leave: after that nobody is sent a park signal any more.
static LEAVING: AtomicU32 = AtomicU32::new(0);

fn shares_actions(t: &Thread) -> bool {
    t.is_programs() && core::ptr::eq(actions(t), &g().actions)
}

/// All threads are about to leave.
pub fn begin_leaving() {
    let all = g().threads.iter().filter(|t| shares_actions(t)).count();
    LEAVING.store(all as u32, SeqCst);
}

/// One that has come to rest by itself may still have a park signal before it, which its handlers have
/// blocked. The program's own of that number stay.
fn drop_park_signals(t: &Thread) {
    const MOST: usize = 16;
    let set = bit(PARK_SIGNAL);
    let mut others = [SigInfo::zeroed(); MOST];
    let mut kept = 0;
    while let Some(info) = others.get_mut(kept) {
        let now = [0u64; 2];
        // SAFETY: takes a pending signal, at once.
        let got = unsafe {
            sys!(
                k::__NR_rt_sigtimedwait,
                &raw const set,
                &raw mut *info,
                now.as_ptr(),
                8
            )
        };
        if got != Ok(PARK_SIGNAL as u64) {
            break;
        }
        kept += usize::from(!park_is_ours(t, info));
    }
    for info in others.iter().take(kept) {
        // SAFETY: what this thread has just taken goes back to it.
        let _ = unsafe {
            sys!(
                k::__NR_rt_tgsigqueueinfo,
                t.tgid(),
                t.tid(),
                PARK_SIGNAL,
                &raw const *info
            )
        };
    }
}

// ---- what the program asks for -----------------------------------------------------------------

/// rt_sigaction(2).
pub fn sigaction(t: &Thread, sig: i32, new: u64, old: u64, size: u64) -> i64 {
    const EFAULT: i64 = -14;
    const EINVAL: i64 = -22;
    if size != 8 || !(1..=64).contains(&sig) || (new != 0 && (sig == SIGKILL || sig == SIGSTOP)) {
        return EINVAL;
    }
    let wanted = if new == 0 {
        None
    } else {
        match memory::get::<KernelAction>(new) {
            Some(a) => Some(a),
            None => return EFAULT,
        }
    };
    let table = actions(t);
    let previous = table.get(sig);
    if let Some(mut a) = wanted {
        a.mask &= !UNBLOCKABLE;
        table.set(sig, a);
        if sig == SIGSEGV {
            library::look(a.handler);
        }
        if let Some(ka) = kernel_action(sig, &a) {
            let _ = raw_sigaction(sig, &ka);
        }
    }
    if old != 0 && !memory::put(old, &previous) {
        return EFAULT;
    }
    0
}

/// The mask as the program believes it to be.
pub fn virtual_mask(t: &Thread, uc: &UContext) -> u64 {
    (uc.sigmask & !HIDDEN) | t.inner().hidden
}

pub fn set_virtual_mask(t: &Thread, uc: &mut UContext, mask: u64) {
    let mask = mask & !UNBLOCKABLE;
    t.inner().hidden = mask & HIDDEN;
    uc.sigmask = mask & !HIDDEN;
}

/// rt_sigprocmask(2): takes effect when our handler returns.
pub fn sigprocmask(t: &Thread, uc: &mut UContext, how: u64, set: u64, old: u64, size: u64) -> i64 {
    const EFAULT: i64 = -14;
    const EINVAL: i64 = -22;
    if size != 8 {
        return EINVAL;
    }
    let present = virtual_mask(t, uc);
    if set != 0 {
        let Some(m) = memory::get::<u64>(set) else {
            return EFAULT;
        };
        let next = match how {
            0 => present | m,
            1 => present & !m,
            2 => m,
            _ => return EINVAL,
        };
        set_virtual_mask(t, uc, next);
    }
    if old != 0 && !memory::put(old, &present) {
        return EFAULT;
    }
    0
}

/// After a successful rt_sigpending(2): what waits here waits, too.
pub fn pending(t: &Thread, set: u64) {
    let waiting = t.inner().waiting.set();
    if let Some(seen) = memory::get::<u64>(set).filter(|_| waiting != 0) {
        memory::put(set, &(seen | waiting));
    }
}

/// sigaltstack(2).
pub fn sigaltstack(t: &Thread, uc: &UContext, new: u64, old: u64) -> i64 {
    const EFAULT: i64 = -14;
    const EINVAL: i64 = -22;
    const ENOMEM: i64 = -12;
    const EPERM: i64 = -1;
    let i = t.inner();
    let on = on_alt(&i.alt, uc.gprs.rsp);
    let previous = SigStack {
        flags: if i.alt.size == 0 {
            SS_DISABLE
        } else {
            on as i32 * SS_ONSTACK
        } | (i.alt.flags & SS_AUTODISARM),
        ..i.alt
    };
    if new != 0 {
        let Some(s) = memory::get::<SigStack>(new) else {
            return EFAULT;
        };
        if on {
            return EPERM;
        }
        match s.flags & !SS_AUTODISARM {
            SS_DISABLE => {
                i.alt = SigStack {
                    sp: 0,
                    flags: SS_DISABLE,
                    pad: 0,
                    size: 0,
                }
            }
            0 | SS_ONSTACK => {
                if s.size < g().min_sigstack {
                    return ENOMEM;
                }
                i.alt = SigStack {
                    pad: 0,
                    flags: s.flags & SS_AUTODISARM,
                    ..s
                };
            }
            _ => return EINVAL,
        }
    }
    if old != 0 && !memory::put(old, &previous) {
        return EFAULT;
    }
    0
}

fn on_alt(alt: &SigStack, rsp: u64) -> bool {
    alt.flags & SS_AUTODISARM == 0 && rsp > alt.sp && rsp - alt.sp <= alt.size
}

/// rt_sigreturn(2): the program's frame becomes the context that we return to.
pub fn sigreturn(t: &'static Thread, uc: &mut UContext) {
    let Some(theirs) = memory::get::<UContext>(uc.gprs.rsp) else {
        let info = SigInfo {
            signo: SIGSEGV,
            code: 0x80,
            ..SigInfo::zeroed()
        };
        raise(t, uc, SIGSEGV, &info);
        return;
    };
    uc.gprs = theirs.gprs;
    // Only user-changeable flags, as the kernel does (FIX_EFLAGS), and interrupts stay on.
    const FIX: u64 = 0x4_4dd5 | 0x100;
    uc.gprs.rflags = (theirs.gprs.rflags & FIX) | 0x202;
    set_virtual_mask(t, uc, theirs.sigmask);
    let i = t.inner();
    if theirs.stack.flags & SS_DISABLE != 0 || theirs.stack.size == 0 {
        i.alt = SigStack {
            sp: 0,
            flags: SS_DISABLE,
            pad: 0,
            size: 0,
        };
    } else {
        i.alt = SigStack {
            flags: theirs.stack.flags & SS_AUTODISARM,
            ..theirs.stack
        };
    }
    // SAFETY: our own frame's image.
    let (room, _) = unsafe { fpstate_len(uc.fpstate) };
    if theirs.fpstate.is_null() || uc.fpstate.is_null() {
        return;
    }
    let at = theirs.fpstate as u64;
    let mut head = [0u8; FXSAVE_LEN];
    if memory::read(at, &mut head) != FXSAVE_LEN {
        return;
    }
    // SAFETY: `head` is an fpstate's legacy area.
    let (total, _) = unsafe { fpstate_len(head.as_ptr()) };
    // SAFETY: the destination is our frame, `room` bytes long.
    unsafe {
        if total > FXSAVE_LEN && total <= room {
            memory::read(at, core::slice::from_raw_parts_mut(uc.fpstate, total));
        } else {
            // Legacy image: x87 and SSE state only, the rest keeps its value.
            core::ptr::copy_nonoverlapping(head.as_ptr(), uc.fpstate, 464);
        }
    }
}

// ---- delivery ----------------------------------------------------------------------------------

/// Does with signal `sig` what the program wants. `true`: the context now enters its handler.
pub fn deliver(t: &'static Thread, uc: &mut UContext, sig: i32, info: &SigInfo) -> bool {
    let a = actions(t).get(sig);
    match a.handler {
        SIG_IGN
            if !(info.by_kernel()
                && matches!(sig, SIGSEGV | SIGBUS | 4 | 8 | SIGTRAP | SIGSYS)) =>
        {
            false
        }
        SIG_DFL | SIG_IGN => {
            default_action(t, uc, sig, info);
            false
        }
        _ => {
            if a.flags & SA_RESETHAND != 0 {
                actions(t).set(
                    sig,
                    KernelAction {
                        handler: SIG_DFL,
                        ..a
                    },
                );
            }
            if !push_frame(t, uc, sig, &a, info) {
                let si = SigInfo {
                    signo: SIGSEGV,
                    code: 0x80,
                    ..SigInfo::zeroed()
                };
                actions(t).set(SIGSEGV, KernelAction::default());
                default_action(t, uc, SIGSEGV, &si);
                return false;
            }
            true
        }
    }
}

/// Builds the frame that the kernel would have built on the program's stack.
fn push_frame(t: &Thread, uc: &mut UContext, sig: i32, a: &KernelAction, info: &SigInfo) -> bool {
    let i = t.inner();
    let mut sp = uc.gprs.rsp.wrapping_sub(128);
    let on = on_alt(&i.alt, uc.gprs.rsp);
    if a.flags & SA_ONSTACK != 0 && i.alt.size != 0 && !on {
        sp = i.alt.sp + i.alt.size;
    }
    // SAFETY: our own frame's image.
    let (fp_len, _) = unsafe { fpstate_len(uc.fpstate) };
    sp = sp.wrapping_sub(fp_len as u64) & !63;
    let fp = sp;
    sp = (sp.wrapping_sub(size_of::<SigFrame>() as u64) & !15).wrapping_sub(8);
    // SAFETY: `fp_len` bytes of our own frame.
    let image = unsafe {
        core::slice::from_raw_parts(
            if fp_len == 0 {
                core::ptr::dangling()
            } else {
                uc.fpstate as *const u8
            },
            fp_len,
        )
    };
    if memory::write(fp, image) != fp_len {
        return false;
    }
    let alt = SigStack {
        flags: if i.alt.size == 0 {
            SS_DISABLE
        } else {
            (on as i32 * SS_ONSTACK) | (i.alt.flags & SS_AUTODISARM)
        },
        ..i.alt
    };
    let mask = virtual_mask(t, uc);
    let frame = SigFrame {
        restorer: a.restorer,
        uc: UContext {
            flags: uc.flags,
            link: 0,
            stack: alt,
            gprs: uc.gprs,
            cs: uc.cs,
            gs: uc.gs,
            fs: uc.fs,
            ss: uc.ss,
            err: uc.err,
            trapno: uc.trapno,
            oldmask: mask,
            cr2: uc.cr2,
            fpstate: if fp_len == 0 {
                core::ptr::null_mut()
            } else {
                fp as *mut u8
            },
            reserved: [0; 8],
            sigmask: mask,
        },
        info: *info,
    };
    if !memory::put(sp, &frame) {
        return false;
    }
    if i.alt.flags & SS_AUTODISARM != 0 && a.flags & SA_ONSTACK != 0 {
        i.alt = SigStack {
            sp: 0,
            flags: SS_DISABLE,
            pad: 0,
            size: 0,
        };
    }
    let frame_at = sp;
    uc.gprs.rip = a.handler;
    uc.gprs.rsp = frame_at;
    uc.gprs.rdi = sig as u64;
    uc.gprs.rax = 0;
    uc.gprs.rsi = frame_at + core::mem::offset_of!(SigFrame, info) as u64;
    uc.gprs.rdx = frame_at + core::mem::offset_of!(SigFrame, uc) as u64;
    // Direction, trap and resume flags are clear in a handler (signal.c, handle_signal).
    uc.gprs.rflags &= !(0x400 | 0x100 | 0x1_0000);
    let mut next = mask | a.mask;
    if a.flags & SA_NODEFER == 0 {
        next |= bit(sig);
    }
    set_virtual_mask(t, uc, next);
    true
}

/// The default action: the real thing, done by the kernel.
fn default_action(t: &'static Thread, uc: &mut UContext, sig: i32, info: &SigInfo) {
    if default_is_ignore(sig) {
        return;
    }
    let dfl = KernelAction::default();
    if default_is_stop(sig) {
        // SAFETY: stops the process, as the kernel would.
        let _ = unsafe { sys!(k::__NR_kill, t.tgid(), SIGSTOP) };
        return;
    }
    let _ = raw_sigaction(sig, &dfl);
    let synchronous = info.by_kernel() && matches!(sig, SIGSEGV | SIGBUS | 4 | 8);
    if synchronous {
        // The instruction faults once more, and the kernel ends the program with the true cause.
        uc.sigmask &= !bit(sig);
        return;
    }
    let unblock = bit(sig);
    // SAFETY: the thread raises the signal against itself; the process ends here.
    unsafe {
        let _ = sys!(k::__NR_tgkill, t.tgid(), t.tid(), sig);
        let _ = sys!(k::__NR_rt_sigprocmask, 1, &unblock as *const u64, 0, 8);
    }
}

/// Blocks asynchronous signals for the rest of a handler that has run under the program's mask so
/// far: it is about to wait, or to change what the program believes about signals.
pub fn close(t: &Thread, uc: &mut UContext) {
    if core::mem::replace(&mut t.inner().open, false) {
        block(t, uc);
    }
}

/// Blocks asynchronous signals for the rest of a handler.
fn block(t: &Thread, uc: &mut UContext) {
    let mut old = 0u64;
    // SAFETY: blocks asynchronous signals; the frame holds the program's mask, or gets it now.
    let _ = unsafe {
        sys!(
            k::__NR_rt_sigprocmask,
            0,
            &HANDLER_MASK as *const u64,
            &mut old as *mut u64,
            8
        )
    };
    upcall::mask_known(t, uc, old);
}

/// As [`block`], and unblocks the rest: after a call that was made under another mask.
pub fn only_ours() {
    // SAFETY: the mask of our handlers.
    let _ = unsafe { sys!(k::__NR_rt_sigprocmask, 2, &HANDLER_MASK as *const u64, 0, 8) };
}

/// Does what signals that struck during a handler have left to do; called before it returns.
#[unsafe(no_mangle)]
extern "C" fn ulpf_late(uc: &mut UContext) {
    let t = Thread::current();
    block(t, uc);
    late(t, uc);
}

/// As [`ulpf_late`], in a handler that has blocked signals.
pub fn late(t: &'static Thread, uc: &mut UContext) {
    if t.inner().own_step.is_some() {
        // The world rests for its step, so it must not rest itself, and the frame is not the
        // program's: `own_step_made` comes back here.
        return;
    }
    t.attention.store(0, SeqCst);
    // On the way to a copy: it lands once more.
    patches::leave(t, uc);
    if t.inner().deferred_len > 0 {
        deliver_deferred(t, uc);
    }
    if g().world.load(SeqCst) != 0 && t.state() == State::Running {
        park(t, uc, Event::None);
    }
}

/// A signal is due on this thread: the debugger first, if it wants to know, then the program.
pub fn raise(t: &'static Thread, uc: &mut UContext, sig: i32, info: &SigInfo) {
    close(t, uc);
    match library::whose(t, uc, sig, info) {
        Whose::Program => {}
        Whose::Library => return library::deliver(t, uc, sig, info),
        Whose::Nobody => return,
    }
    let i = t.inner();
    if g().wants_stop(sig) && t.is_debugged() {
        i.info = *info;
        park::end_step(t, uc);
        park(t, uc, Event::Signal(sig));
        return;
    }
    let stepping = i.stepping;
    if stepping {
        park::set_tf(uc, false); // not in the frame that the program returns to
    }
    if deliver(t, uc, sig, info) && stepping {
        i.stepping = false;
        park(t, uc, Event::Stepped);
    } else if stepping {
        park::set_tf(uc, true);
    }
}

/// Delivers what arrived while our own code ran.
pub fn deliver_deferred(t: &'static Thread, uc: &mut UContext) {
    let i = t.inner();
    let n = i.deferred_len.min(DEFERRED);
    i.deferred_len = 0;
    let batch = i.deferred;
    for info in batch.iter().take(n) {
        raise(t, uc, info.signo, info);
    }
}

// ---- handlers ----------------------------------------------------------------------------------

/// A handler begins with the program's alignment-check flag, which our code was not written for.
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

/// Whose handler begins here.
#[inline(always)]
fn interrupted_thread(uc: &UContext) -> &'static Thread {
    let t = Thread::current();
    if !ours(uc.gprs.rip) {
        upcall::forget(t);
    }
    t
}

/// Code of the stub's own?
pub fn ours(rip: u64) -> bool {
    let (base, end) = g().image;
    (rip >= base && rip < end) || fault::is_thunk(rip)
}

/// A signal has interrupted our own code: inside `ulpf_blocking`'s window, or while a guarded access
/// is served.
fn interrupted_ourselves(t: &Thread, uc: &mut UContext, info: Option<&SigInfo>) {
    let rip = uc.gprs.rip;
    let i = t.inner();
    t.attention.store(1, SeqCst);
    let direct = direct::interrupted(t, uc);
    if let Some(info) = info {
        // No program blocks it: else the kernel has put this frame on top of another handler's.
        let open = uc.sigmask & bit(PARK_SIGNAL) == 0;
        if direct && open && i.direct_mask.is_none() {
            i.direct_mask = Some(uc.sigmask);
        } else if open && !direct {
            upcall::interrupted(t, rip, uc.sigmask);
        }
        if let Some(slot) = i.deferred.get_mut(i.deferred_len) {
            *slot = *info;
            i.deferred_len += 1;
        }
        uc.sigmask |= HANDLER_MASK;
    }
    if rip >= ulpf_blocking_start as *const () as u64
        && rip <= ulpf_blocking_insn as *const () as u64
    {
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
/// The frame's fpstate is an XSAVE image.
const UC_FP_XSTATE: u64 = 1;

extern "C" fn on_signal(sig: i32, info: &SigInfo, uc: &mut UContext) {
    clear_ac();
    let t = interrupted_thread(uc);
    if info.by_kernel() && matches!(sig, 4 | 8) && fault::recover(uc, info) {
        return;
    }
    if info.by_kernel() && matches!(sig, 4 | 8) && !ours(uc.gprs.rip) {
        fault::cancel_own_step(t, uc);
    }
    arrived(t, uc, info);
}

/// A signal that no instruction of the program has caused.
fn arrived(t: &'static Thread, uc: &mut UContext, info: &SigInfo) {
    patches::leave(t, uc);
    let left = sites::leave(uc);
    if ours(uc.gprs.rip) {
        if waiting::set_aside(t, info) {
            // The program knows nothing of it: a call that it has interrupted is made again.
            t.kicked.store(true, SeqCst);
            return interrupted_ourselves(t, uc, None);
        }
        return interrupted_ourselves(t, uc, Some(info));
    }
    if !waiting::set_aside(t, info) {
        raise(t, uc, info.signo, info);
    }
    if let Some(l) = left {
        l.rewind(uc); // nobody has handled the signal
        l.again(t, uc);
    }
}

/// Is this the stub's park signal, or the command's, and not one of the program's own of that number?
fn park_is_ours(t: &Thread, info: &SigInfo) -> bool {
    const SI_TKILL: i32 = -6;
    // From another namespace the sender has no number.
    info.code == SI_TKILL && [g().stub_tid.load(Relaxed), 0].contains(&info.sender())
        || core::mem::take(&mut t.inner().booting)
}

extern "C" fn on_park(_: i32, info: &SigInfo, uc: &mut UContext) {
    clear_ac();
    let t = interrupted_thread(uc);
    if !park_is_ours(t, info) {
        return arrived(t, uc, info);
    }
    upcall::learn(uc);
    patches::leave(t, uc);
    let left = sites::leave(uc);
    if ours(uc.gprs.rip) {
        t.kicked.store(true, SeqCst);
        return interrupted_ourselves(t, uc, None);
    }
    if let Some(l) = left {
        l.rewind(uc);
    }
    if g().world.load(SeqCst) != 0 {
        park(t, uc, Event::None);
    }
    if let Some(l) = left {
        l.again(t, uc);
    }
    patches::skip(t, uc);
}

extern "C" fn on_fault(sig: i32, info: &SigInfo, uc: &mut UContext) {
    clear_ac();
    let t = interrupted_thread(uc);
    if !info.by_kernel() {
        return arrived(t, uc, info);
    }
    fault(t, sig, info, uc);
}

/// A fault of this thread, which came by a signal or by an upcall.
pub fn fault(t: &'static Thread, sig: i32, info: &SigInfo, uc: &mut UContext) {
    sites::leave(uc);
    // A privileged instruction at a place where another one was.
    let landing = if sig == SIGSEGV && info.code == SI_KERNEL {
        patches::landed(t, uc)
    } else {
        None
    };
    let left = if landing.is_none() {
        patches::leave(t, uc)
    } else {
        None
    };
    if left.is_some() {
        patches::enable(t);
    }
    let rip = uc.gprs.rip;
    if ours(rip) {
        if (ulpf_copy as *const () as u64..ulpf_copy_fixup as *const () as u64).contains(&rip) {
            uc.gprs.rip = ulpf_copy_fixup as *const () as u64;
            return;
        }
        if fault::recover(uc, info) {
            return;
        }
        crate::fatal_fault("the stub itself has faulted", rip, info.addr());
    }
    t.inner().open = sig == SIGSEGV;
    if let Some(Landing::Often(start)) = landing {
        park::request(t, uc, Request::Cool { start });
    } else if landing.is_some() {
        // It is on its way to the copy.
    } else if left == Some(Left::Access) {
        fault::again(t, uc);
    } else if !fault::handle(t, uc, info) {
        close(t, uc);
        if t.inner().own_step.is_some() {
            fault::cancel_own_step(t, uc);
        }
        if t.inner().hidden & bit(sig) != 0 {
            // The program has blocked a synchronous signal: the kernel kills it for that.
            actions(t).set(sig, KernelAction::default());
        }
        raise(t, uc, sig, info);
    }
    patches::skip(t, uc);
    if core::mem::replace(&mut t.inner().open, false) && uc.flags & UC_FP_XSTATE != 0 {
        uc.link |= RETURN_HERE;
    } else if t.attention.load(SeqCst) != 0 {
        ulpf_late(uc);
    }
}

const TRAP_TRACE: i32 = 2;
const SI_KERNEL: i32 = 0x80;

extern "C" fn on_trap(sig: i32, info: &SigInfo, uc: &mut UContext) {
    clear_ac();
    let t = interrupted_thread(uc);
    let i = t.inner();
    if !info.by_kernel() {
        patches::untrap(uc);
        return arrived(t, uc, info);
    }
    if info.code == TRAP_TRACE {
        match sites::step(uc) {
            sites::Stepped::No | sites::Stepped::Mov => {}
            sites::Stepped::Syscall => {
                let ours = i.stepping || i.own_step.is_some();
                syscalls::dispatch(t, uc);
                if !ours {
                    raise(t, uc, sig, info);
                }
                return;
            }
        }
    }
    sites::leave(uc);
    if info.code == SI_KERNEL {
        if direct::finish(t, uc) {
            return;
        }
        if patches::trap(t, uc, uc.gprs.rip.wrapping_sub(1)) {
            fault::again(t, uc);
            return patches::skip(t, uc);
        }
    } else if patches::leave(t, uc) == Some(Left::Access)
        && info.code == TRAP_TRACE
        && (i.stepping || park::steps_itself(t, uc))
    {
        // The step has only made the jump.
        return fault::again(t, uc);
    }
    if info.code == debug_registers::TRAP_PERF && info.data[1] == debug_registers::COOKIE {
        if ours(uc.gprs.rip) {
            debug_registers::our_own(&debug_registers::drain(t));
        } else {
            on_match(t, uc);
            if park::steps_itself(t, uc) {
                own_trap(t, uc); // one SIGTRAP for both
            }
        }
        return;
    }
    if ours(uc.gprs.rip) {
        // A step into our code can only be the restorer after a handler; it is over by itself.
        park::set_tf(uc, false);
        return;
    }
    if info.code == SI_KERNEL {
        let at = uc.gprs.rip.wrapping_sub(1);
        let own = i.own_step.is_some_and(|s| s.pc == at);
        if own {
            // Under the breakpoint stands an int3 of the program's own.
            fault::cancel_own_step(t, uc);
        } else if let Some(stop) = g().breakpoint_at(at) {
            uc.gprs.rip = at;
            if stop.wants_stop(t, uc) {
                park::end_step(t, uc);
                park(t, uc, Event::Breakpoint);
            } else {
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
    if info.code == TRAP_TRACE || info.code == SI_KERNEL || info.code == 1 {
        if i.own_step.is_some() {
            return own_step_made(t, uc);
        }
        if i.stepping && info.code != SI_KERNEL {
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

/// A program that steps itself has made an instruction, which we have performed.
pub fn own_trap(t: &'static Thread, uc: &mut UContext) {
    let mut info = SigInfo {
        signo: SIGTRAP,
        code: TRAP_TRACE,
        ..SigInfo::zeroed()
    };
    info.data[0] = uc.gprs.rip;
    raise(t, uc, SIGTRAP, &info);
}

/// One instruction of the debugger's step is done: is that all?
fn stepped(t: &'static Thread, uc: &mut UContext) {
    let (start, end) = t.inner().range;
    if uc.gprs.rip >= start && uc.gprs.rip < end && g().world.load(SeqCst) == 0 {
        park::set_tf(uc, true);
    } else {
        step_done(t, uc);
    }
}

/// The thread has made its own step; what struck before it is due now.
fn own_step_made(t: &'static Thread, uc: &mut UContext) {
    fault::end_own_step(t, uc);
    if t.attention.load(SeqCst) != 0 {
        ulpf_late(uc);
    }
}

/// Debug registers have matched. If the instruction was a step, the kernel sends one SIGTRAP for both:
/// the step's since Linux 6.x, theirs before.
fn on_match(t: &'static Thread, uc: &mut UContext) {
    if t.inner().own_step.is_some() {
        return own_step_made(t, uc);
    }
    if matched(t, uc) {
        return;
    }
    fault::look_again(t, uc);
    if t.inner().stepping {
        stepped(t, uc);
    }
}

/// Reports what debug registers have seen of the last instruction. `true`: the thread has rested for it.
fn matched(t: &'static Thread, uc: &mut UContext) -> bool {
    let fired = debug_registers::drain(t);
    if !fired.any() {
        return false;
    }
    let mut stops = Events::none();
    debug_registers::report(t, uc, &fired, None, |_| false, &mut stops);
    if stops.is_empty() {
        return false;
    }
    fault::stop_for(t, uc, &stops);
    true
}

/// The debugger's step has been made.
pub fn step_done(t: &'static Thread, uc: &mut UContext) {
    park::end_step(t, uc);
    park(t, uc, Event::Stepped);
}

const SYS_USER_DISPATCH: i32 = 2;

extern "C" fn on_sys(sig: i32, info: &SigInfo, uc: &mut UContext) {
    clear_ac();
    let t = interrupted_thread(uc);
    if !info.by_kernel() {
        return arrived(t, uc, info);
    }
    sites::leave(uc);
    if info.code == SYS_USER_DISPATCH {
        syscalls::dispatch(t, uc);
        return;
    }
    if ours(uc.gprs.rip) {
        return interrupted_ourselves(t, uc, Some(info));
    }
    raise(t, uc, sig, info);
}
