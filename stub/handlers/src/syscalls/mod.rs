//! The program's system calls. Syscall user dispatch sends each of them here as a SIGSYS. Most are made on the
//! program's behalf with their buffers redirected to the alias, some are answered here.
//!
//! A call that may block is made inside `asm::ulpf_blocking`, under the program's own signal mask and in state
//! `InSyscall`. So signals interrupt it as without us, and a stop of the world need not interrupt it at all.

mod again;
mod attempt;
mod buffers;
mod busy;
pub mod call;
pub mod catch;
mod commands;
mod confined;
mod continuation;
mod ends;
mod exec;
pub mod fork_page;
pub mod forked;
mod in_place;
mod inherited;
mod io_uring;
pub mod legacy;
mod list;
mod mappings;
mod ordinary;
pub mod process;
mod process_lists;
pub mod put_off;
pub mod rseq;
pub mod scratch;
pub mod seccomp;
mod sigmask_calls;
pub mod sites;
pub mod sites_code;
pub mod sockets;
mod timed;
mod timeout;
pub mod tracing;
mod unguarded;
pub mod user_dispatch;
mod userfaultfd;
pub mod vectors;
pub mod vsyscall;

use core::sync::atomic::Ordering::*;

use linux_raw_sys::general as k;
use linux_raw_sys::prctl::{PR_SET_SECCOMP, PR_SET_SYSCALL_USER_DISPATCH};
use ulpf_lib::seccomp::X86_64;
use ulpf_lib::sys::uapi::arch::*;
use ulpf_lib::syscalls::row::Special;
use ulpf_lib::{library_abi, sys, syscalls};

use crate::check;
use crate::crash;
use crate::global::g;
use crate::hot_sites;
use crate::library;
use crate::paths;
use crate::runtime::areas;
use crate::runtime::events::{Event, Events, Request};
use crate::runtime::frame::UContext;
use crate::runtime::thread::{Call, Current, OwnStepKind};
use crate::runtime::{keys, park};
use crate::sequences;
use crate::signals::{alternate, kernel, masks, raise, sigreturn};
use crate::uring::rings;

use call::{ABANDONED, Args, Outcome, RESTART, arguments, raw};
use io_uring::{completions, enter, register, setup};
use mappings::{is_memory_call, lock_call, memory_call};
use ordinary::ordinary;
use scratch::Scratch;
use sigmask_calls::{with_mask, with_mask_pair, with_signal_set};

pub fn dispatch(t: Current, uc: &mut UContext) {
    g().count_syscall();
    let nr = uc.gprs.rax;
    let insn = uc.gprs.rip.wrapping_sub(2);
    let i = t.own();
    t.orig_rax.store(nr as i64, Relaxed);
    if i.own_step
        .get()
        .is_some_and(|s| s.kind == OwnStepKind::OverBreakpoint)
    {
        // The breakpoint was on this `syscall` instruction, which has now been fetched.
        crate::fault::end_own_step(t, uc);
    }
    let alone = sequences::pause(t, uc);
    if !catch::enter(t, uc, nr) {
        t.orig_rax.store(-1, Relaxed);
        return;
    }
    let args = arguments(uc);
    crash::look_at_call(t, &uc.gprs, nr, &args);
    let judgement = match user_dispatch::takes(t, uc, nr, X86_64) {
        true => Some(Outcome::Leave),
        false => seccomp::judge(t, uc, nr, &args),
    };
    let returned = (nr == k::__NR_rt_sigreturn as u64).then_some(uc.gprs.rsp);
    if nr == k::__NR_rt_sigreturn as u64 && judgement.is_none() {
        sigreturn::sigreturn(t, uc);
        catch::leave(t, insn + 2, nr, false);
    } else {
        let result = match judgement {
            Some(result) => result,
            None => keys::through(uc, |uc| emulate(t, uc, nr, &args)),
        };
        let again = matches!(result, Outcome::Value(RESTART));
        finish(uc, nr, result);
        // The kernel may have written to a pointer that a watch follows.
        paths::settle(t, uc);
        catch::leave(t, insn + 2, nr, again);
    }
    t.orig_rax.store(-1, Relaxed);
    busy::note(t, uc, insn, nr);
    let still = library::after_call(t, uc, returned);
    settle(t, uc, still);
    if let Some(section) = alone {
        sequences::go_on(t, uc, section, insn + 2);
    }
}

/// Completes a call: delivers signals that came meanwhile, and reports events. `still`: the debugger's step continues.
fn settle(t: Current, uc: &mut UContext, still: bool) {
    let i = t.own();
    if i.deferred_len.get() > 0 {
        raise::deliver_deferred(t, uc);
    }
    if !i.waiting.is_empty() {
        raise::deliver_waiting(t, uc);
    }
    i.waited_under.set(None);
    let pending = t.own().pending.replace(Events::none());
    if !pending.is_empty() {
        crate::fault::stop_for(t, uc, &pending);
    } else if t.stepping.load(Relaxed) && !still {
        raise::step_done(t, uc);
    }
    t.own().call.set(None);
}

fn finish(uc: &mut UContext, nr: u64, outcome: Outcome) {
    match outcome {
        Outcome::Leave | Outcome::Value(ABANDONED) => {}
        Outcome::Value(RESTART) => {
            uc.gprs.rip = uc.gprs.rip.wrapping_sub(2);
            uc.gprs.rax = nr;
        }
        Outcome::Value(v) => uc.gprs.rax = v as u64,
    }
}

fn emulate(t: Current, uc: &mut UContext, nr: u64, a: &Args) -> Outcome {
    use Outcome::Value;
    // A program reads completions from memory, without a call, so every call is an occasion to report their hits.
    if rings::SOME.load(Relaxed) {
        completions::look(t, uc);
    }
    put_off::serve(t, uc);
    match syscalls::row(nr).and_then(|row| row.special) {
        Some(Special::Mask(at)) => Value(with_mask(t, uc, nr, a, at as usize, None)),
        Some(Special::MaskPair) => Value(with_mask_pair(t, uc, nr, a)),
        Some(Special::SignalSet(at)) => Value(with_signal_set(t, uc, nr, a, at as usize)),
        Some(Special::Clone) => process::clone(t, uc, nr, a),
        Some(Special::Exec) => Value(exec::exec(t, uc, nr, a)),
        Some(Special::Mapping) => Value(memory_call(t, uc, nr, a)),
        Some(Special::Lock) => Value(lock_call(t, uc, nr, a)),
        Some(Special::Stub) => take_part(t, uc, nr, a),
        Some(Special::Rights) => Value(confined::call(t, uc, nr, a)),
        None if nr as u32 == k::__NR_process_madvise => {
            Value(inherited::unreported(|| ordinary(t, uc, nr, a)))
        }
        None if process_lists::lists(nr) => Value(process_lists::list(t, uc, nr, a)),
        None if nr as u32 == k::__NR_kill && a[0] as i32 == -1 => {
            let result = process_lists::kill(t, a[1]);
            Value(result.unwrap_or_else(|| ordinary(t, uc, nr, a)))
        }
        None if is_memory_call(nr, a) => Value(memory_call(t, uc, nr, a)),
        Some(Special::Futex) | None => Value(ordinary(t, uc, nr, a)),
    }
}

/// Makes a call that the stub must follow, or answers it.
fn take_part(t: Current, uc: &mut UContext, nr: u64, a: &Args) -> Outcome {
    use Outcome::Value;
    match nr as u32 {
        k::__NR_rt_sigaction => Value(ours(t, uc, nr, a, [(a[1], 32), (a[2], 32)], |_| {
            kernel::sigaction(t, a[0] as i32, a[1], a[2], a[3])
        })),
        k::__NR_rt_sigprocmask => Value(ours(t, uc, nr, a, [(a[1], 8), (a[2], 8)], |uc| {
            masks::sigprocmask(t, uc, a[0], a[1], a[2], a[3])
        })),
        k::__NR_sigaltstack => Value(ours(t, uc, nr, a, [(a[0], 24), (a[1], 24)], |uc| {
            alternate::sigaltstack(t, uc, a[0], a[1])
        })),
        k::__NR_rt_sigpending => {
            let result = ordinary(t, uc, nr, a);
            if result == 0 {
                masks::pending(t, a[0]);
            }
            Value(result)
        }
        k::__NR_arch_prctl if matches!(a[0], ARCH_SET_GS | ARCH_GET_GS) => {
            if a[0] == ARCH_SET_GS && a[1] != 0 {
                areas::GS_TAKEN.store(true, SeqCst);
                park::request(t, uc, Request::NoPatches);
            }
            areas::disable();
            Value(ordinary(t, uc, nr, a))
        }
        k::__NR_arch_prctl if a[0] == ARCH_SET_FS && paths::of_threads() => {
            let result = ordinary(t, uc, nr, a);
            park::request(t, uc, Request::Moved);
            Value(result)
        }
        // This needs more vector state than our own frames have room for, or return addresses that they lack.
        k::__NR_arch_prctl if matches!(a[0], ARCH_REQ_XCOMP_PERM | ARCH_SHSTK_ENABLE) => {
            park::request(t, uc, Request::NoUpcalls);
            Value(ordinary(t, uc, nr, a))
        }
        // With access to ports, the bytes that we use as traps would not trap.
        k::__NR_iopl | k::__NR_ioperm if areas::SOME.load(Relaxed) => {
            park::request(t, uc, Request::NoPatches);
            Value(ordinary(t, uc, nr, a))
        }
        k::__NR_exit => process::exit_thread(t, uc, a),
        k::__NR_exit_group => {
            if g().decides.load(Relaxed) {
                park::park(t, uc, Event::Ends);
            }
            if hot_sites::KEPT.load(Relaxed) && t.is_programs() {
                park::request(t, uc, Request::KeepHot);
            }
            if check::LEAKS.load(Relaxed) && t.is_programs() {
                park::request(t, uc, Request::FindLeaks);
            }
            if check::STOPS.load(Relaxed) && t.is_programs() && t.is_debugged() {
                park::park(t, uc, Event::HeapEnd);
            }
            // SAFETY: ends the program, as requested.
            let _ = unsafe { sys!(nr, a[0]) };
            Outcome::Leave
        }
        k::__NR_set_tid_address => {
            t.own().clear_tid.set(a[0]);
            Value(raw(nr, a))
        }
        k::__NR_set_robust_list => {
            let result = raw(nr, a);
            if result == 0 {
                t.robust.store(a[0], Relaxed);
            }
            Value(result)
        }
        k::__NR_ptrace => tracing::call(t, uc, nr, a),
        k::__NR_rseq => Value(rseq::restartable_sequences(t, uc, nr, a)),
        k::__NR_io_uring_setup => Value(setup::setup(t, uc, a)),
        k::__NR_io_uring_enter => Value(enter::enter(t, uc, nr, a)),
        k::__NR_io_uring_register => Value(register::register(t, uc, nr, a)),
        k::__NR_prctl if a[0] == library_abi::CALL => Value(library::call(t, uc, a)),
        k::__NR_prctl if a[0] == PR_SET_SECCOMP.into() => Value(seccomp::set_by_prctl(t, uc, a)),
        k::__NR_seccomp => Value(seccomp::call(t, uc, a)),
        k::__NR_prctl if a[0] == PR_SET_SYSCALL_USER_DISPATCH.into() => {
            Value(user_dispatch::set(t, uc, a))
        }
        k::__NR_prctl if confined::by_prctl(a[0]) => Value(confined::call(t, uc, nr, a)),
        _ => Value(ordinary(t, uc, nr, a)),
    }
}

/// True if only the kernel is concerned, given reachable buffers.
fn is_ordinary(nr: u64) -> bool {
    let special = syscalls::row(nr).and_then(|row| row.special);
    matches!(special, None | Some(Special::Futex | Special::Rights))
}

/// Answers a call here: it reads the first of these ranges and writes the second.
fn ours(
    t: Current,
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
