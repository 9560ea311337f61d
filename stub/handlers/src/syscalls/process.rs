//! Threads and processes that the program creates, and how they end.
//!
//! * A new task that shares memory (thread, vfork child) starts on its own block, with a copy of the parent's signal
//!   frame with rax = 0. The child sets up dispatch and alternate stack, and loads the frame with rt_sigreturn. No
//!   program stack is touched.
//! * A forked child loses everything of ours before it runs an instruction of the program. It gets private memory
//!   instead of shared, the program's signal actions, and the original code bytes.

use core::sync::atomic::Ordering::*;

use linux_raw_sys::general as k;
use linux_raw_sys::prctl::{PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON};
use ulpf_lib::sys::failure::{E2BIG, EFAULT, EINVAL, ENOMEM};
use ulpf_lib::{AccessKind, sys};

use super::buffers;
use super::call::{Args, Outcome, RESTART, raw};
use super::ends::end_thread;
use super::fork_page::ForkPage;
use super::scratch::Scratch;
use super::seccomp;
use crate::check;
use crate::edits;
use crate::global::{follows, g, machine};
use crate::last_writer;
use crate::locks;
use crate::ours;
use crate::paths;
use crate::runtime::areas;
use crate::runtime::asm::ulpf_clone;
use crate::runtime::debug_registers;
use crate::runtime::events::{Event, Request};
use crate::runtime::frame::{SS_DISABLE, SigStack, UContext};
use crate::runtime::handler_frames::copy_frame;
use crate::runtime::library_link;
use crate::runtime::memory::{self, reachable};
use crate::runtime::park::{self, enter_syscall, leave_syscall, park, request};
use crate::runtime::thread::{Call, Current, State, Thread};
use crate::sequences;
use crate::signals::{alternate, kernel};
use crate::stopped::Stopped;

const CLONE_VM: u64 = k::CLONE_VM as u64;
const CLONE_SIGHAND: u64 = k::CLONE_SIGHAND as u64;
const CLONE_VFORK: u64 = k::CLONE_VFORK as u64;
const CLONE_THREAD: u64 = k::CLONE_THREAD as u64;
const CLONE_CHILD_CLEARTID: u64 = k::CLONE_CHILD_CLEARTID as u64;
const CLONE_CHILD_SETTID: u64 = k::CLONE_CHILD_SETTID as u64;
const CLONE_PIDFD: u64 = k::CLONE_PIDFD as u64;
const CLONE_UNTRACED: u64 = k::CLONE_UNTRACED as u64;
const CSIGNAL: u64 = k::CSIGNAL as u64;
const CLONE_PARENT_SETTID: u64 = k::CLONE_PARENT_SETTID as u64;
/// clone3 only: the child starts without handlers, neither the program's nor ours.
const CLONE_CLEAR_SIGHAND: u64 = k::CLONE_CLEAR_SIGHAND;

/// `struct clone_args`, as far as it is defined (CLONE_ARGS_SIZE_VER2).
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

impl CloneArgs {
    const LEAST: usize = 64;
    const MOST: usize = size_of::<CloneArgs>();

    /// The arguments of a clone3 and their size, or the error that the kernel would return (copy_clone_args_from_user).
    fn read(at: u64, size: u64) -> Result<(CloneArgs, usize), i64> {
        let mut v = CloneArgs::default();
        if size > 4096 {
            return Err(E2BIG);
        }
        let len = (size as usize).min(Self::MOST);
        if len < Self::LEAST {
            return Err(EINVAL);
        }
        // SAFETY: a plain structure as bytes.
        let bytes = unsafe { core::slice::from_raw_parts_mut(&raw mut v as *mut u8, len) };
        if memory::read(at, bytes) != len {
            return Err(EFAULT);
        }
        // Fields beyond the defined ones must be zero.
        for n in len as u64..size {
            match memory::get::<u8>(at + n) {
                Some(0) => {}
                Some(_) => return Err(E2BIG),
                None => return Err(EFAULT),
            }
        }
        Ok((v, len))
    }

    /// Redirects pointers: the kernel's own stores fail, silently or not, on guarded pages.
    fn redirect(&mut self) {
        for word in [
            &mut self.pidfd,
            &mut self.child_tid,
            &mut self.parent_tid,
            &mut self.set_tid,
        ] {
            *word = reachable(*word);
        }
    }
}

pub fn clone(t: Current, uc: &mut UContext, nr: u64, a: &Args) -> Outcome {
    let (mut v3, mut size) = (CloneArgs::default(), 0);
    let flags = match nr as u32 {
        k::__NR_clone3 => {
            (v3, size) = match CloneArgs::read(a[0], a[1]) {
                Ok(read) => read,
                Err(e) => return Outcome::Value(e),
            };
            v3.flags
        }
        k::__NR_clone => a[0] & 0xffff_ffff,
        k::__NR_vfork => CLONE_VM | CLONE_VFORK | 17,
        _ => 17,
    };
    let clear = flags & CLONE_CLEAR_SIGHAND != 0;
    if clear && flags & CLONE_SIGHAND != 0 {
        return Outcome::Value(EINVAL);
    }
    // The kernel would remove our handlers, too: the request is applied to the program's own.
    v3.flags &= !CLONE_CLEAR_SIGHAND;
    let (pidfd_at, parent_tid_at) = match nr as u32 {
        k::__NR_clone3 => (v3.pidfd, v3.parent_tid),
        _ => (a[2], a[2]),
    };
    let mut scratch = Scratch::new(t);
    let written = [
        (flags & CLONE_PIDFD != 0, pidfd_at),
        (flags & CLONE_PARENT_SETTID != 0, parent_tid_at),
    ];
    for (_, at) in written.iter().filter(|w| w.0) {
        scratch.keep(*at, 4);
    }
    let outcome = if flags & CLONE_VM == 0 {
        fork(t, uc, nr, a, (v3, size), clear)
    } else {
        share(t, uc, nr, a, (v3, size), flags, clear)
    };
    if let Outcome::Value(result @ 1..) = outcome {
        let call = Call {
            nr,
            args: *a,
            result,
        };
        for (_, at) in written.iter().filter(|w| w.0) {
            buffers::hit(t, uc, &call, *at, 4, AccessKind::Write, &scratch.kept);
        }
    }
    outcome
}

/// Creates a thread or a vfork child.
fn share(
    t: Current,
    uc: &mut UContext,
    nr: u64,
    a: &Args,
    (v3, size): (CloneArgs, usize),
    flags: u64,
    clear: bool,
) -> Outcome {
    locks::threads_begin();
    let Some(child) = g().threads.create(&g().actions) else {
        return Outcome::Value(ENOMEM);
    };
    let serial = child.serial.load(SeqCst);
    let (program_stack, child_tid, parent_tid, tls) = match nr as u32 {
        k::__NR_clone3 => (
            if v3.stack == 0 {
                0
            } else {
                v3.stack + v3.stack_size
            },
            v3.child_tid,
            v3.parent_tid,
            v3.tls,
        ),
        k::__NR_clone => (a[1], a[3], a[2], a[4]),
        _ => (0, 0, 0, 0),
    };
    // SAFETY: the block of a thread that does not run yet.
    let Some(child_uc) = (unsafe { copy_frame(uc, child.stack_top(), 64 << 10) }) else {
        child.set_state(State::Dead);
        return Outcome::Value(ENOMEM);
    };
    child_uc.gprs.rax = 0;
    if program_stack != 0 {
        child_uc.gprs.rsp = program_stack;
    }
    child_uc.stack = child.our_stack();
    park::set_tf(child_uc, false);
    child_uc.gprs.rcx = uc.gprs.rip;
    child_uc.gprs.r11 = uc.gprs.rflags;
    // SAFETY: the record is not in use yet.
    let ci = unsafe { child.own() };
    let i = t.own();
    ci.hidden.set(i.hidden.get());
    seccomp::inherit(child, &t);
    child.rights.put(&t.rights.get());
    ci.alt.set(if flags & CLONE_VFORK != 0 {
        i.alt.get()
    } else {
        SigStack {
            sp: 0,
            flags: SS_DISABLE,
            pad: 0,
            size: 0,
        }
    });
    ci.actions.set(i.actions.get());
    let vforks = flags & CLONE_VFORK != 0 && flags & CLONE_THREAD == 0;
    let followed = vforks && g().follows(follows::VFORK) && t.is_debugged();
    ci.vfork_parent.set(if followed { t.tid() } else { 0 });
    ci.spawned.set(vforks && t.is_programs());
    let exit_signal = match nr as u32 {
        k::__NR_clone3 => v3.exit_signal,
        _ => flags & CSIGNAL,
    };
    // Chosen as in the kernel (kernel_clone) between the events fork, vfork, clone and none.
    let is_kin = flags & (CLONE_VFORK | CLONE_THREAD | CLONE_UNTRACED) == 0
        && exit_signal != k::SIGCHLD.into();
    child.kin.store(is_kin && t.is_debugged(), Relaxed);
    if flags & CLONE_SIGHAND == 0 {
        ci.actions.set(child.own_actions.copy_from(i.actions.get()));
        if clear {
            child.own_actions.clear_handlers();
        }
    }
    if flags & CLONE_CHILD_CLEARTID != 0 {
        ci.clear_tid.set(child_tid);
    }
    child.tgid.store(
        if flags & CLONE_THREAD != 0 {
            t.tgid()
        } else {
            0
        },
        Relaxed,
    );
    let stack = child_uc as *mut UContext as u64;
    // `exit_thread` names the word again that the kernel must clear at the thread's end.
    let result = if nr as u32 == k::__NR_clone3 {
        let mut v = v3;
        v.stack = child.base() as u64;
        v.stack_size = stack - v.stack;
        v.redirect();
        let args = [nr, &raw const v as u64, size as u64, 0, 0, 0, 0];
        make(t, uc, flags, &args, (child, serial))
    } else {
        let args = [
            k::__NR_clone as u64,
            flags,
            stack,
            reachable(parent_tid),
            reachable(child_tid),
            tls,
            0,
        ];
        make(t, uc, flags, &args, (child, serial))
    };
    if result < 0 {
        child.has_ended(serial);
    } else if followed && result > 0 {
        t.own().report(Event::VforkDone);
    }
    Outcome::Value(result)
}

fn make(
    t: Current,
    uc: &mut UContext,
    flags: u64,
    args: &[u64; 7],
    (child, serial): (&'static Thread, u64),
) -> i64 {
    if flags & CLONE_VFORK != 0 {
        enter_syscall(t, uc);
        if g().world.load(SeqCst) != 0 {
            // This comes first: a stop of the world waits for a thread that starts.
            child.has_ended(serial);
            leave_syscall(t, uc);
            return RESTART;
        }
    }
    // SAFETY: the child runs on its own block, see `ulpf_child`.
    let r = unsafe { ulpf_clone(args, child) };
    if flags & CLONE_VFORK != 0 {
        child.has_ended(serial); // it has exec'ed or exited, or never was
        leave_syscall(t, uc);
    }
    r
}

/// First code of a new task that shares our memory (called by `asm::ulpf_clone`).
#[unsafe(no_mangle)]
extern "C" fn ulpf_child(t: &'static Thread, uc: &mut UContext) {
    // SAFETY: the record that was created for this thread.
    let t = unsafe { Current::with(t) };
    areas::disable();
    // SAFETY: set-up of the calling thread.
    unsafe {
        let tid = sys!(k::__NR_gettid).unwrap_or(0) as i32;
        t.tid.store(tid, Relaxed);
        if t.tgid() == 0 {
            t.tgid
                .store(sys!(k::__NR_getpid).unwrap_or(0) as i32, Relaxed);
        }
        let stack = t.our_stack();
        let _ = sys!(k::__NR_sigaltstack, &raw const stack, 0);
    }
    last_writer::begins(t);
    enable_dispatch();
    let free = if debug_registers::active() || paths::of_threads() {
        request(t, uc, Request::Adopt);
        g().world.load(SeqCst) == 0
    } else {
        t.gate().may_run(State::Starting, &g().world)
    };
    if !free {
        park(t, uc, Event::None);
    }
    let parent = t.own().vfork_parent.get();
    if parent != 0 {
        park(t, uc, Event::Vforked { parent });
    } else if tells_of_itself(t) {
        park(t, uc, Event::Created);
    }
}

/// True if the debugger wants to be notified of the thread's beginning and end.
fn tells_of_itself(t: Current) -> bool {
    g().thread_events.load(SeqCst) && g().debugger.load(Relaxed) && t.is_debugged()
}

/// Dispatches all system calls of the calling thread to us, except our own.
pub fn enable_dispatch() -> i64 {
    let (base, end) = machine().image;
    let (what, on) = (
        PR_SET_SYSCALL_USER_DISPATCH.into(),
        PR_SYS_DISPATCH_ON.into(),
    );
    // SAFETY: there is no selector byte.
    unsafe { sys::syscall6(k::__NR_prctl as u64, what, on, base, end - base, 0, 0) }
}

fn fork(
    t: Current,
    uc: &mut UContext,
    nr: u64,
    a: &Args,
    (mut v3, size): (CloneArgs, usize),
    clear: bool,
) -> Outcome {
    let followed = g().follows(follows::FORK) && t.tgid() == g().pid.load(Relaxed);
    let tidy = followed || g().guarded() || g().has_breakpoints();
    if tidy {
        request(t, uc, Request::ForkBegin);
    }
    let page = match tidy.then(|| ForkPage::new(followed)).transpose() {
        Ok(page) => page,
        Err(e) => {
            request(t, uc, Request::End);
            return Outcome::Value(-i64::from(e.0));
        }
    };
    let mut args = *a;
    // Our code continues where it is, also in the child, until it returns to the program.
    let stack = match nr as u32 {
        k::__NR_clone3 if v3.stack != 0 && v3.stack_size != 0 => {
            let end = v3.stack.wrapping_add(v3.stack_size);
            (v3.stack, v3.stack_size) = (0, 0);
            end
        }
        k::__NR_clone => core::mem::take(&mut args[1]),
        _ => 0,
    };
    let (flags, child_tid) = match nr as u32 {
        k::__NR_clone3 => (&mut v3.flags, v3.child_tid),
        _ => (&mut args[0], a[3]),
    };
    // The kernel would store the child's id before the child has memory of its own.
    let mut own_tid_at = 0;
    if matches!(nr as u32, k::__NR_clone | k::__NR_clone3)
        && *flags & CLONE_CHILD_SETTID != 0
        && g().alias_of(child_tid).is_some()
    {
        *flags &= !CLONE_CHILD_SETTID;
        own_tid_at = child_tid;
    }
    let flags_given = match nr as u32 {
        k::__NR_clone | k::__NR_clone3 => *flags,
        _ => 0,
    };
    // Nor may the child find its number where CLONE_PARENT_SETTID stores it for the parent.
    let parent_tid_at = match nr as u32 {
        k::__NR_clone3 => v3.parent_tid,
        _ => args[2],
    };
    let later = flags_given & CLONE_PARENT_SETTID != 0 && g().alias_of(parent_tid_at).is_some();
    let mut parent_tid = 0i32;
    match nr as u32 {
        k::__NR_clone3 => {
            // At its end, the child has its own memory at the program's own address.
            let child_tid = v3.child_tid;
            v3.redirect();
            v3.child_tid = child_tid;
            if later {
                v3.parent_tid = &raw mut parent_tid as u64;
            }
            args[0] = &raw const v3 as u64;
            args[1] = size as u64;
        }
        k::__NR_clone if later => args[2] = &raw mut parent_tid as u64,
        k::__NR_clone => args[2] = reachable(a[2]),
        _ => {}
    }
    // SAFETY: asks for our number, by which the child will recognise us.
    let parent = unsafe { sys!(k::__NR_getpid) }.unwrap_or(0);
    let withdrawn = sequences::before_fork(t);
    let result = raw(nr, &args);
    if result != 0 {
        sequences::after_fork(t, withdrawn);
    }
    if result == 0 {
        in_child(t, uc, clear);
        sequences::after_fork(t, withdrawn);
        if stack != 0 {
            uc.gprs.rsp = stack;
        }
        if own_tid_at != 0 {
            // SAFETY: asks for the child's id.
            let tid = unsafe { sys!(k::__NR_gettid) }.unwrap_or(0) as i32;
            memory::put(own_tid_at, &tid);
        }
        if followed {
            seccomp::tell(&t);
        }
        if let Some(page) = page {
            page.tell_done();
            wait_to_be_taken(&page, parent);
            page.leave();
        }
        uc.gprs.rax = 0;
        let stays = followed && seccomp::image_stays();
        ours::leave_child(uc, |nr, ip, args| {
            !stays && seccomp::permits(&t, nr, ip, args)
        });
        return Outcome::Value(0);
    }
    if followed && result > 0 {
        let child = result as i32;
        t.own().report(Event::Forked { child });
    }
    if let Some(page) = page {
        page.not_for_others();
        if result > 0 {
            // The child copies the memory that it still shares with us; it may also be killed meanwhile.
            while !page.is_done() {
                page.wait_until_done(20_000_000);
                let mut info = [0u64; 16];
                let look = k::WNOHANG | k::WNOWAIT | k::WEXITED | k::__WALL;
                // SAFETY: a query.
                let dead =
                    unsafe { sys!(k::__NR_waitid, k::P_PID, result, info.as_mut_ptr(), look, 0) };
                // A child made with CLONE_PARENT is not our child, but our sibling.
                let gone = dead.is_err() && {
                    // SAFETY: signal 0 only asks.
                    unsafe { sys!(k::__NR_kill, result, 0) }.is_err()
                };
                if gone || info[0] != 0 {
                    break;
                }
            }
        }
        match followed && result > 0 {
            true => page.keep(result as i32, || g().follows(follows::FORK)),
            false => page.leave(),
        }
        request(t, uc, Request::End);
    }
    if later && result > 0 {
        memory::put(parent_tid_at, &parent_tid);
    }
    Outcome::Value(result)
}

/// In the forked child: waits until the command has decided about it, or until its parent has ended. If it is followed,
/// the command watches it return from our handler. In a new PID namespace (CLONE_NEWPID) it cannot see the end of its
/// parent: then it waits for a limited time.
fn wait_to_be_taken(page: &ForkPage, parent: u64) {
    const LONGEST: i64 = 10_000_000_000;
    const TICK: i64 = 200_000_000;
    let mut waited = 0;
    while !page.may_go() {
        // SAFETY: asks for our parent's number, which changes when the process that forked has ended.
        match unsafe { sys!(k::__NR_getppid) } {
            Ok(0) if waited < LONGEST => {}
            Ok(now) if now == parent => {}
            _ => return,
        }
        page.wait_to_go(TICK);
        waited += TICK;
    }
}

/// In the forked child: removes everything of ours. `clear`: and the program's signal handlers.
fn in_child(t: Current, uc: &mut UContext, clear: bool) {
    check::alone();
    // The child has neither the shared area nor generated code.
    areas::disable();
    g().shared.store(core::ptr::null_mut(), Relaxed);
    // SAFETY: the child has one thread, and it is this one.
    let mut stopped = unsafe { Stopped::claim() };
    if stopped.guards().privatize_in_child().is_err() {
        crate::say::fatal_child("a forked child cannot get memory of its own (out of memory?)");
    }
    edits::remove_in_child(&mut stopped);
    locks::begin_anew();
    // No debugger can stop the child (by a system call that is caught).
    g().debugger.store(false, SeqCst);
    library_link::left();
    kernel::take_away(t, clear);
    let i = t.own();
    uc.sigmask |= i.hidden.get();
    alternate::give_back(t, uc);
    t.stepping.store(false, Relaxed);
    i.deferred_len.set(0);
    i.waiting.clear();
    i.hidden_meanwhile.set(None);
    park::set_tf(uc, false);
}

pub fn exit_thread(t: Current, uc: &mut UContext, a: &Args) -> Outcome {
    if tells_of_itself(t) {
        let status = a[0] as i32 & 0xff;
        park(t, uc, Event::Exits { status });
    }
    if paths::of_threads() {
        request(t, uc, Request::Leaves);
    }
    end_thread(t);
    let _ = raw(k::__NR_exit as u64, a);
    Outcome::Leave
}
