//! Makes a call for the program: with guarded buffers redirected, and again if only we ended it.

use core::sync::atomic::Ordering::*;

use linux_raw_sys::general as k;
use ulpf_lib::syscalls;

use super::attempt::{attempt, interrupted_by_us};
use super::call::{ABANDONED, Args, EFAULT, EINTR, RESTART};
use super::commands::{self, Memory};
use super::list::List;
use super::scratch::Scratch;
use super::{buffers, continuation, sites, sockets, timed, timeout, unguarded};
use crate::generated;
use crate::global::g;
use crate::runtime::debug_registers;
use crate::runtime::events::Request;
use crate::runtime::frame::UContext;
use crate::runtime::park;
use crate::runtime::thread::{Call, Current};
use crate::uring::queries;

/// The program limits the wait of calls on a socket: slots leave these calls to the stub.
fn limits_time(t: Current, uc: &mut UContext) {
    if !timed::TIMED.swap(true, SeqCst) && sites::SOME.load(SeqCst) {
        park::request(t, uc, Request::SitesAnew);
    }
}

pub fn ordinary(t: Current, uc: &mut UContext, nr: u64, a: &Args) -> i64 {
    if nr == u64::from(k::__NR_setsockopt) && sockets::limits(a) {
        limits_time(t, uc);
    }
    let begun = timed::begin(nr);
    let mut done = t.own().already.take();
    if done > 0 {
        t.kicked.store(true, SeqCst);
    } else {
        t.own().waits.set((begun, false));
        done = call(t, uc, nr, a, a, 0);
        queries::closed(nr);
    }
    if done > 0 && t.kicked.load(SeqCst) {
        return go_on(t, uc, nr, a, begun, done);
    }
    done
}

/// Makes the rest of a call that we have interrupted halfway, as the kernel would have without us.
#[inline(never)]
pub fn go_on(t: Current, uc: &mut UContext, nr: u64, a: &Args, begun: u64, mut done: i64) -> i64 {
    let mut buffers = continuation::Buffers::new();
    while t.kicked.swap(false, SeqCst)
        && let Some(rest) = continuation::of(nr, a, done, &mut buffers)
    {
        t.own().waits.set((begun, true));
        match call(t, uc, nr, &rest, &rest, 0) {
            ABANDONED => return ABANDONED,
            more @ 1.. => done += more,
            _ => break,
        }
    }
    done
}

/// Makes the call with guarded buffers redirected. `a` is what the program has passed; `given` is the same, with the
/// arguments marked in `ours` pointing to our memory.
pub fn call(t: Current, uc: &mut UContext, nr: u64, a: &Args, given: &Args, mut ours: u32) -> i64 {
    let mut timeout = timeout::Timeout::of(nr, a);
    let mut again = false;
    let (waits_since, continued) = t.own().waits.take();
    again |= continued;
    let begun = t.own().begun.take();
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
        generated::passed(t, uc, a);
        // Checked again for every attempt: watches come and go while a call waits.
        if !watches_kernel() {
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
        if unguarded::needed(memory, a) {
            return unguarded::call(t, uc, nr, a, given);
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
            && !t.leaving.load(Relaxed)
            && g().guarded()
            && !syscalls::row(nr).is_some_and(|row| row.consumes)
            && !matches!(memory, Memory::Addresses)
        {
            drop(scratch);
            return unguarded::call(t, uc, nr, a, given);
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

pub fn finished(
    t: Current,
    timeout: &Option<timeout::Timeout>,
    again: bool,
    a: &Args,
    result: i64,
) -> i64 {
    if t.leaving.load(Relaxed) && result == EINTR && t.kicked.load(SeqCst) {
        return RESTART;
    }
    match timeout {
        Some(time) if result != ABANDONED && !time.give_back(a, again, result) => EFAULT,
        _ => result,
    }
}

/// True if the kernel's own accesses must be checked.
pub fn watches_kernel() -> bool {
    g().guarded() || debug_registers::active()
}
