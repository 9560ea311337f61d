//! The program's system calls. Syscall user dispatch sends each of them here as a SIGSYS; most are
//! made on the program's behalf with their buffers redirected to the alias, some are answered here.
//!
//! A call of unknown length is made inside `asm::ulpf_blocking`, under the program's own signal
//! mask and in state `InSyscall`, so that signals interrupt it as always and so that a stop of the
//! world need not interrupt it at all.

mod buffers;
pub mod catch;
mod commands;
mod exec;
mod opened;
pub mod process;
mod rest;
pub mod scratch;
pub mod sites;
pub mod sites_code;
pub mod sockets;
mod timeout;
mod vectors;

use core::sync::atomic::Ordering::*;

use linux_raw_sys::general as k;
use ulpf_lib::syscalls::row::{Blocks, Special};
use ulpf_lib::{door, sys, syscalls};

use crate::control::heap::Mapped;
use crate::g;
use crate::library;
use crate::patches;
use crate::runtime::asm::ulpf_blocking;
use crate::runtime::debug_registers;
use crate::runtime::frame::UContext;
use crate::runtime::memory;
use crate::runtime::park::{self, enter_syscall, leave_syscall};
use crate::runtime::signals;
use crate::runtime::thread::{Call, Events, OwnStepKind, Request, Thread};
use crate::runtime::waiting;
use crate::unwind;

use buffers::List;
use commands::Memory;
use scratch::Scratch;

pub const EINTR: i64 = -4;
/// arch_prctl(2) codes.
const SET_GS: u64 = 0x1001;
const GET_GS: u64 = 0x1004;
const REQ_XCOMP_PERM: u64 = 0x1023;
const SHSTK_ENABLE: u64 = 0x5001;
const ENOSYS: i64 = -38;
const EPERM: i64 = -1;
const EFAULT: i64 = -14;
/// The call has not happened and is to be made again (after a signal handler, if one is due).
pub const RESTART: i64 = -512;
/// The debugger has sent the thread elsewhere: leave the context alone.
pub const ABANDONED: i64 = -513;

/// The program has asked for io_uring, and got ENOSYS.
pub static IO_URING: core::sync::atomic::AtomicBool = core::sync::atomic::AtomicBool::new(false);

pub type Args = [u64; 6];

pub fn dispatch(t: &'static Thread, uc: &mut UContext) {
    g().count_syscall();
    let nr = uc.gprs.rax;
    let insn = uc.gprs.rip.wrapping_sub(2);
    let i = t.inner();
    i.orig_rax = nr as i64;
    if i.own_step
        .is_some_and(|s| s.kind == OwnStepKind::OverBreakpoint)
    {
        // The breakpoint stood on this `syscall` instruction, which has now been fetched.
        crate::fault::end_own_step(t, uc);
    }
    if !catch::enter(t, uc, nr) {
        i.orig_rax = -1;
        return;
    }
    let args = arguments(uc);
    let returned = (nr == k::__NR_rt_sigreturn as u64).then_some(uc.gprs.rsp);
    if nr == k::__NR_rt_sigreturn as u64 {
        signals::sigreturn(t, uc);
        catch::leave(t, insn + 2, nr, false);
    } else {
        let result = emulate(t, uc, nr, &args);
        let again = matches!(result, Outcome::Value(RESTART));
        finish(t, uc, nr, result);
        catch::leave(t, insn + 2, nr, again);
    }
    i.orig_rax = -1;
    sites::note(t, uc, insn, nr);
    let still = library::after_call(t, uc, returned);
    if i.deferred_len > 0 {
        signals::deliver_deferred(t, uc);
    }
    if !i.waiting.is_empty() {
        waiting::deliver(t, uc);
    }
    let pending = core::mem::replace(&mut t.inner().pending, Events::none());
    if !pending.is_empty() {
        crate::fault::stop_for(t, uc, &pending);
    } else if t.inner().stepping && !still {
        signals::step_done(t, uc);
    }
    t.inner().call = None;
}

fn arguments(uc: &UContext) -> Args {
    let r = &uc.gprs;
    [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9]
}

/// What has become of a call.
pub enum Outcome {
    /// rax for the program.
    Value(i64),
    /// The context is complete as it is.
    Leave,
}

fn finish(_t: &'static Thread, uc: &mut UContext, nr: u64, outcome: Outcome) {
    match outcome {
        Outcome::Leave | Outcome::Value(ABANDONED) => {}
        Outcome::Value(RESTART) => {
            uc.gprs.rip = uc.gprs.rip.wrapping_sub(2);
            uc.gprs.rax = nr;
        }
        Outcome::Value(v) => uc.gprs.rax = v as u64,
    }
}

fn emulate(t: &'static Thread, uc: &mut UContext, nr: u64, a: &Args) -> Outcome {
    use Outcome::Value;
    match nr as u32 {
        k::__NR_rt_sigaction => Value(ours(t, uc, nr, a, [(a[1], 32), (a[2], 32)], |_| {
            signals::sigaction(t, a[0] as i32, a[1], a[2], a[3])
        })),
        k::__NR_rt_sigprocmask => Value(ours(t, uc, nr, a, [(a[1], 8), (a[2], 8)], |uc| {
            signals::sigprocmask(t, uc, a[0], a[1], a[2], a[3])
        })),
        k::__NR_sigaltstack => Value(ours(t, uc, nr, a, [(a[0], 24), (a[1], 24)], |uc| {
            signals::sigaltstack(t, uc, a[0], a[1])
        })),
        k::__NR_rt_sigpending => {
            let result = ordinary(t, uc, nr, a);
            if result == 0 {
                signals::pending(t, a[0]);
            }
            Value(result)
        }
        k::__NR_arch_prctl if matches!(a[0], SET_GS | GET_GS) => {
            if a[0] == SET_GS && a[1] != 0 {
                patches::GS_TAKEN.store(true, SeqCst);
                park::request(t, uc, Request::NoPatches);
            }
            patches::disable();
            Value(ordinary(t, uc, nr, a))
        }
        // More vector state than our own frames have room for, or return addresses that they lack.
        k::__NR_arch_prctl if matches!(a[0], REQ_XCOMP_PERM | SHSTK_ENABLE) => {
            park::request(t, uc, Request::NoUpcalls);
            Value(ordinary(t, uc, nr, a))
        }
        // Our tables have room for all that could be watched; with ports, the bytes that we count on to trap
        // would not.
        k::__NR_mlockall | k::__NR_iopl | k::__NR_ioperm if patches::SOME.load(Relaxed) => {
            park::request(t, uc, Request::NoPatches);
            Value(ordinary(t, uc, nr, a))
        }
        k::__NR_exit => process::exit_thread(t, uc, a),
        k::__NR_exit_group => {
            // SAFETY: ends the program, as asked.
            let _ = unsafe { sys!(nr, a[0]) };
            Outcome::Leave
        }
        k::__NR_set_tid_address => {
            t.inner().clear_tid = a[0];
            Value(raw(nr, a))
        }
        k::__NR_set_robust_list => {
            let result = raw(nr, a);
            if result == 0 {
                t.inner().robust = a[0];
            }
            Value(result)
        }
        // The kernel writes to a registered area at any preemption and kills the program when it
        // lies on a guarded page; glibc does without.
        k::__NR_rseq => Value(if a[0] != 0 && a[2] & 1 == 0 {
            ENOSYS
        } else {
            raw(nr, a)
        }),
        // Its kernel threads would access guarded memory behind our back.
        k::__NR_io_uring_setup => {
            if !IO_URING.swap(true, SeqCst) {
                park::notify(); // the user hears of it once
            }
            Value(ENOSYS)
        }
        // Faults the pages in, so they have to be accessible.
        k::__NR_mlock | k::__NR_mlock2 if g().touches(a[0] & !4095, a[0].saturating_add(a[1])) => {
            let (start, end) = (a[0] & !4095, a[0].saturating_add(a[1]));
            park::request(t, uc, Request::OpenBegin { start, end });
            let result = raw(nr, a);
            park::request(t, uc, Request::End);
            Value(result)
        }
        k::__NR_setsockopt if sockets::limits(a) => {
            let first = !sockets::TIMED.swap(true, SeqCst);
            if first && sites::SOME.load(SeqCst) {
                park::request(t, uc, Request::SitesAnew);
            }
            Value(ordinary(t, uc, nr, a))
        }
        k::__NR_prctl if a[0] == door::CALL => Value(library::call(t, uc, a)),
        k::__NR_prctl if a[0] == 59 => Value(EPERM), // PR_SET_SYSCALL_USER_DISPATCH
        _ => match syscalls::row(nr).and_then(|row| row.special) {
            Some(Special::Mask(at)) => Value(with_mask(t, uc, nr, a, at as usize, None)),
            Some(Special::MaskPair) => Value(with_mask_pair(t, uc, nr, a)),
            Some(Special::SignalSet(at)) => Value(with_signal_set(t, uc, nr, a, at as usize)),
            Some(Special::Clone) => process::clone(t, uc, nr, a),
            Some(Special::Exec) => Value(exec::exec(t, uc, nr, a)),
            Some(Special::Mapping) => Value(memory_call(t, uc, nr, a)),
            Some(Special::Futex) | None => Value(ordinary(t, uc, nr, a)),
        },
    }
}

/// A call that is answered here: it reads the first of these and writes the second.
fn ours(
    t: &'static Thread,
    uc: &mut UContext,
    nr: u64,
    a: &Args,
    [input, output]: [(u64, u64); 2],
    f: impl FnOnce(&mut UContext) -> i64,
) -> i64 {
    use ulpf_lib::AccessKind::{Read, Write};
    if !g().has_watches() {
        return f(uc);
    }
    let mut scratch = Scratch::new(t);
    scratch.keep(output.0, output.1);
    let result = f(uc);
    let call = Call {
        nr,
        args: *a,
        result,
    };
    for ((at, len), kind) in [(input, Read), (output, Write)] {
        if at != 0 && result == 0 {
            buffers::hit(t, uc, &call, at, len, kind, &scratch.kept);
        }
    }
    result
}

/// The bare call.
fn raw(nr: u64, a: &Args) -> i64 {
    // SAFETY: the program's own call with its own arguments.
    unsafe { sys::syscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5]) }
}

/// A call that takes a temporary signal mask as argument `at`: ours must stay deliverable.
fn with_mask(
    t: &'static Thread,
    uc: &mut UContext,
    nr: u64,
    a: &Args,
    at: usize,
    mut mask: Option<u64>,
) -> i64 {
    let mut given = *a;
    if let Some(p) = given.get_mut(at).filter(|p| **p != 0) {
        let Some(m) = memory::get::<u64>(*p) else {
            return EFAULT;
        };
        let slot = mask.insert(m & !signals::HIDDEN);
        *p = slot as *const u64 as u64;
        return hiding(t, m, |t| call(t, uc, nr, a, &given, 1 << at));
    }
    call(t, uc, nr, a, &given, 0)
}

/// The sixth argument of pselect6 and io_pgetevents points to a mask's address and size.
fn with_mask_pair(t: &'static Thread, uc: &mut UContext, nr: u64, a: &Args) -> i64 {
    if a[5] == 0 {
        return call(t, uc, nr, a, a, 0);
    }
    let Some([mask_at, size]) = memory::get::<[u64; 2]>(a[5]) else {
        return EFAULT;
    };
    if mask_at == 0 {
        return call(t, uc, nr, a, a, 0);
    }
    let Some(m) = memory::get::<u64>(mask_at) else {
        return EFAULT;
    };
    let mask = m & !signals::HIDDEN;
    let pair = [&mask as *const u64 as u64, size];
    let mut given = *a;
    given[5] = pair.as_ptr() as u64;
    hiding(t, m, |t| call(t, uc, nr, a, &given, 1 << 5))
}

/// A call that waits under another mask, as far as the kernel does not see it.
fn hiding(t: &'static Thread, mask: u64, f: impl FnOnce(&'static Thread) -> i64) -> i64 {
    if waiting::interrupt(t, mask) {
        return EINTR;
    }
    t.inner().hidden_meanwhile = Some(mask);
    let result = f(t);
    t.inner().hidden_meanwhile = None;
    result
}

/// Waiting for signals, or a descriptor for them: the park signal stays ours.
fn with_signal_set(t: &'static Thread, uc: &mut UContext, nr: u64, a: &Args, at: usize) -> i64 {
    let mut given = *a;
    let Some(m) = a.get(at).and_then(|p| memory::get::<u64>(*p)) else {
        return call(t, uc, nr, a, a, 0); // the kernel says what is wrong
    };
    if nr == k::__NR_rt_sigtimedwait as u64
        && let Some(info) = t.inner().waiting.take(m)
    {
        return match a[1] == 0 || memory::put(a[1], &info) {
            true => info.signo as i64,
            false => EFAULT,
        };
    }
    let set = m & !signals::bit(ulpf_lib::boot::PARK_SIGNAL);
    if let Some(p) = given.get_mut(at) {
        *p = &set as *const u64 as u64;
    }
    call(t, uc, nr, a, &given, 1 << at)
}

fn ordinary(t: &'static Thread, uc: &mut UContext, nr: u64, a: &Args) -> i64 {
    let begun = sockets::begin(nr);
    let mut done = core::mem::take(&mut t.inner().already);
    if done > 0 {
        t.kicked.store(true, SeqCst);
    } else {
        t.inner().waits = (begun, false);
        done = call(t, uc, nr, a, a, 0);
    }
    if done > 0 && t.kicked.load(SeqCst) {
        return go_on(t, uc, nr, a, begun, done);
    }
    done
}

/// What we have interrupted halfway goes on, as it would have without us.
#[inline(never)]
fn go_on(
    t: &'static Thread,
    uc: &mut UContext,
    nr: u64,
    a: &Args,
    begun: u64,
    mut done: i64,
) -> i64 {
    let mut room = rest::Room::new();
    while t.kicked.swap(false, SeqCst)
        && let Some(rest) = rest::of(nr, a, done, &mut room)
    {
        t.inner().waits = (begun, true);
        match call(t, uc, nr, &rest, &rest, 0) {
            ABANDONED => return ABANDONED,
            more @ 1.. => done += more,
            _ => break,
        }
    }
    done
}

/// Makes the call with guarded buffers redirected. `a`: what the program has passed; `given`: the same,
/// with the arguments marked in `ours` pointing to our memory.
fn call(
    t: &'static Thread,
    uc: &mut UContext,
    nr: u64,
    a: &Args,
    given: &Args,
    mut ours: u32,
) -> i64 {
    let mut timeout = timeout::Timeout::of(nr, a);
    let mut again = false;
    let (waits_since, continued) = core::mem::take(&mut t.inner().waits);
    again |= continued;
    let begun = core::mem::take(&mut t.inner().begun);
    if let (Some(time), true) = (&mut timeout, begun != 0) {
        // A slot has made the first attempt.
        time.begun = begun;
        again = true;
    }
    loop {
        let mut args = *given;
        if let Some(time) = &mut timeout {
            ours |= time.prepare(&mut args, again);
        }
        let mut waits = true;
        if again && waits_since != 0 {
            match sockets::wait(t, uc, nr, a, waits_since) {
                sockets::Again::Plain => {}
                sockets::Again::WithoutWaiting => waits = false,
                sockets::Again::Wait => continue,
                sockets::Again::Over(result) => {
                    return finished(t, &timeout, again, a, result);
                }
            }
        }
        // Rechecked for every attempt: watches come and go while a call waits.
        if !g().watches_kernel() {
            t.kicked.store(false, SeqCst);
            let mut made = nr;
            let tried = !waits && sockets::without_waiting(&mut made, &mut args);
            let result = attempt(t, uc, made, &args);
            if !(interrupted_by_us(t, result) || tried && result == sockets::EAGAIN) {
                t.kicked.fetch_or(tried, SeqCst); // the rest waits
                return finished(t, &timeout, again, a, result);
            }
            again = true;
            continue;
        }
        let memory = commands::memory(nr, a);
        if opened::needed(memory, a) {
            return opened::call(t, uc, nr, a, given);
        }
        let mut scratch = Scratch::new(t);
        let list = List::of(memory);
        buffers::redirect(nr, &list, a, &mut args, ours, &mut scratch);
        buffers::before(nr, &list, a, &mut scratch);
        t.kicked.store(false, SeqCst);
        let mut made = scratch.instead.unwrap_or(nr);
        let tried = !waits && sockets::without_waiting(&mut made, &mut args);
        let result = attempt(t, uc, made, &args);
        if interrupted_by_us(t, result) || tried && result == sockets::EAGAIN {
            again = true;
            continue;
        }
        t.kicked.fetch_or(tried, SeqCst);
        let result = finished(t, &timeout, again, a, result);
        if result == RESTART || result == ABANDONED {
            return result;
        }
        if result == EFAULT
            && !t.inner().leaving
            && g().guarded()
            && !syscalls::row(nr).is_some_and(|row| row.consumes)
            && !matches!(memory, Memory::Addresses)
        {
            drop(scratch);
            return opened::call(t, uc, nr, a, given);
        }
        let call = Call {
            nr,
            args: *a,
            result,
        };
        buffers::after(t, uc, &list, &call, &mut scratch);
        return result;
    }
}

fn attempt(t: &'static Thread, uc: &mut UContext, nr: u64, args: &Args) -> i64 {
    if syscalls::row(nr).is_some_and(|row| row.blocks == Blocks::Never) {
        raw(nr, args)
    } else {
        blocking(t, uc, nr, args)
    }
}

/// Nothing but we made the call end: it is made again.
fn interrupted_by_us(t: &Thread, result: i64) -> bool {
    !t.inner().leaving
        && t.inner().deferred_len == 0
        && t.kicked.load(SeqCst)
        && (result == RESTART || result == EINTR)
}

fn finished(
    t: &Thread,
    timeout: &Option<timeout::Timeout>,
    again: bool,
    a: &Args,
    result: i64,
) -> i64 {
    if t.inner().leaving && result == EINTR && t.kicked.load(SeqCst) {
        return RESTART;
    }
    match timeout {
        Some(time) if result != ABANDONED && !time.give_back(a, again, result) => EFAULT,
        _ => result,
    }
}

/// One call under the program's signal mask.
fn blocking(t: &'static Thread, uc: &mut UContext, nr: u64, a: &Args) -> i64 {
    let mask = uc.sigmask & !signals::HIDDEN;
    let args = [nr, a[0], a[1], a[2], a[3], a[4], a[5]];
    // The debugger sees the thread at the instruction itself: if it sends the thread elsewhere and
    // back (a call by hand), the system call is made again.
    uc.gprs.rip = uc.gprs.rip.wrapping_sub(2);
    enter_syscall(t, uc);
    let result = if g().world.load(SeqCst) != 0 {
        RESTART
    } else {
        // SAFETY: the program's own call.
        let r = unsafe { ulpf_blocking(&args, &mask) };
        if t.inner().deferred_len == 0 {
            // SAFETY: blocks asynchronous signals again for the rest of the handler.
            let _ = unsafe {
                sys!(
                    k::__NR_rt_sigprocmask,
                    0,
                    &signals::HANDLER_MASK as *const u64,
                    0,
                    8
                )
            };
        }
        r
    };
    if result == RESTART && t.inner().deferred_len == 0 {
        t.kicked.store(true, SeqCst);
    }
    let at = uc.gprs.rip;
    leave_syscall(t, uc);
    if t.dirty.swap(false, SeqCst) {
        return ABANDONED;
    }
    uc.gprs.rip = at.wrapping_add(2);
    result
}

/// The memory whose mapping a call is about to change, if it is any of ours.
fn affected(nr: u64, a: &Args) -> Option<(u64, u64)> {
    const MREMAP_FIXED: u64 = 2;
    let span = |start: u64, len: u64| {
        (
            start & !4095,
            start
                .saturating_add(len)
                .min(ulpf_lib::addr::USER_END)
                .next_multiple_of(4096),
        )
    };
    let range = match nr as u32 {
        k::__NR_mmap
            if a[3] & k::MAP_FIXED as u64 != 0 && a[3] & k::MAP_FIXED_NOREPLACE as u64 == 0 =>
        {
            span(a[0], a[1])
        }
        k::__NR_munmap | k::__NR_mprotect | k::__NR_pkey_mprotect | k::__NR_remap_file_pages => {
            span(a[0], a[1])
        }
        // Advice that changes content or inheritance (DONTNEED, FREE, REMOVE, DONTFORK, WIPEONFORK,
        // KEEPONFORK, DOFORK, DONTNEED_LOCKED), or that says what may be accessed (POPULATE_READ,
        // POPULATE_WRITE, GUARD_INSTALL, GUARD_REMOVE); the rest is about speed.
        k::__NR_madvise if matches!(a[2], 4 | 8..=11 | 18 | 19 | 22..=24 | 102 | 103) => {
            span(a[0], a[1])
        }
        k::__NR_mremap => {
            let old = span(a[0], a[1].max(a[2]).max(1));
            let new = span(a[4], a[2]);
            if a[3] & MREMAP_FIXED != 0 && g().touches(new.0, new.1) {
                (old.0.min(new.0), old.1.max(new.1))
            } else {
                old
            }
        }
        k::__NR_brk => {
            let end = g().brk.load(Relaxed);
            match a[0] {
                0 => return None,
                // It keeps a page from what is above.
                new if new >= end => {
                    span(end.next_multiple_of(4096), (new - end).saturating_add(8192))
                }
                new => span(new.next_multiple_of(4096), end - new),
            }
        }
        k::__NR_shmat if a[1] != 0 => (0, ulpf_lib::addr::USER_END),
        k::__NR_shmdt => (0, ulpf_lib::addr::USER_END),
        _ => return None,
    };
    (range.0 < range.1
        && (g().touches(range.0, range.1)
            || g().wants(nr, range.0, range.1)
            || debug_registers::any_in(range.0, range.1)
            || sites::touches(range.0, range.1)
            || patches::touches(range.0, range.1)
            || unwind::touches(range.0, range.1)))
    .then_some(range)
}

/// Calls that change mappings. What is ours in the range goes back to plain memory first, with all
/// other threads at rest, and is guarded again afterwards as far as it is still there.
fn memory_call(t: &'static Thread, uc: &mut UContext, nr: u64, a: &Args) -> i64 {
    // DONTFORK, WIPEONFORK; a droppable mapping is wiped, too.
    if nr as u32 == k::__NR_madvise && matches!(a[2], 10 | 18)
        || nr as u32 == k::__NR_mmap && a[3] & 15 == 8
    {
        ulpf_lib::guard::maps::fork_advice_follows();
    }
    let result = match affected(nr, a) {
        Some((start, end)) => {
            // What is replaced, or discarded, changes under its watches without any store.
            const MREMAP_FIXED: u64 = 2;
            let replaced = match nr as u32 {
                k::__NR_mmap => Some((start, end)),
                // DONTNEED, REMOVE, DONTNEED_LOCKED
                k::__NR_madvise if matches!(a[2], 4 | 9 | 24) => Some((start, end)),
                k::__NR_mremap if a[3] & MREMAP_FIXED != 0 => {
                    Some((a[4], a[4].saturating_add(a[2])))
                }
                _ => None,
            };
            let mut scratch = Scratch::new(t);
            if let Some((from, to)) = replaced {
                scratch.keep(from, to - from);
            }
            park::request(t, uc, Request::ReleaseBegin { start, end });
            let r = raw(nr, a);
            if r >= 0 {
                t.inner().mapped = Mapped::by(nr, a, r as u64);
            }
            park::request(t, uc, Request::End);
            if replaced.is_some() && r >= 0 {
                let call = Call {
                    nr,
                    args: *a,
                    result: r,
                };
                for (addr, len) in scratch.kept.parts() {
                    let kind = ulpf_lib::AccessKind::Write;
                    buffers::hit(t, uc, &call, addr, len, kind, &scratch.kept);
                }
            }
            r
        }
        None => {
            let r = raw(nr, a);
            if r >= 0 && g().has_watches() {
                let mapped = Mapped::by(nr, a, r as u64);
                let heap = mapped.matters();
                if heap || g().watch_in_new_memory(nr, a, r as u64) {
                    t.inner().mapped = mapped;
                    park::request(t, uc, Request::Rearm);
                }
            }
            r
        }
    };
    if result >= 0 && unwind::is_loaded(nr, a) {
        park::request(t, uc, Request::Unwind { at: 0 });
    }
    if nr as u32 == k::__NR_brk && result > 0 {
        g().brk.store(result as u64, Relaxed);
    }
    result
}
