//! Serves a call that came by an entry ([`super::entries`]), and ends it.

use core::sync::atomic::Ordering::*;

use linux_raw_sys::errno::ENOMEM;
use ulpf_engine::cpu::Gprs;
use ulpf_stub_tables::breakpoints::Breakpoint;
use ulpf_stub_tables::patches::Known;

use super::entries::{self, Function, function, go_back, leave, way_back};
use super::serve::{Outcome, serve};
use super::{blocks, client, errno, heap, left, old, requests};
use crate::breakpoints;
use crate::direct_frame::Frame;
use crate::fault;
use crate::global::g;
use crate::patches;
use crate::runtime::areas::{GS_TAKEN, area};
use crate::runtime::events::{Event, Events, Request};
use crate::runtime::frame::UContext;
use crate::runtime::park;
use crate::runtime::thread::Current;
use crate::signals::raise;

/// Serves a call on the thread's own stack, in a forked child or after a detach.
#[unsafe(no_mangle)]
extern "C" fn ulpf_check_alone(a: u64, b: u64, c: u64, known: &Known) -> u64 {
    let Some(function) = function(known) else {
        return 0;
    };
    if function.goes_on() {
        // (The program's function in which this call would have continued.)
        return call(known.back, [a, b, c]);
    }
    old::give_back(|free, block| {
        call(free, [block, 0, 0]);
    });
    let own = || entries::passed(known).map(|own| call(own.back, [a, b, c]));
    if function.allocates(a)
        && let Some(block) = own()
    {
        return block;
    }
    if let Some(block) = move_out(function, known, [a, b, c]) {
        return block;
    }
    let goes_on = entries::passed(known).is_some();
    match serve((function, goes_on), None, None, [a, b, c]) {
        Outcome::Returns(value) => value,
        Outcome::NeedsRoom(_) => {
            errno::set(ENOMEM);
            0
        }
        Outcome::Passes => own().unwrap_or(0),
    }
}

/// A block of ours whose size changes becomes one of the program's own allocator. `None`: the call is another one.
fn move_out(function: Function, known: &Known, [block, b, c]: [u64; 3]) -> Option<u64> {
    let size = match function {
        Function::Realloc => b,
        Function::Reallocarray => b.checked_mul(c)?,
        _ => return None,
    };
    let old = blocks::at(block).filter(|old| !old.freed && size > 0)?;
    let own = entries::own_of(Function::Malloc, known.pc)?;
    let new = call(own.back, [size, 0, 0]);
    if new != 0 {
        heap::copy(block, new, old.size.min(size));
        let _ = heap::free(block, old.by, 0);
    }
    Some(new)
}

/// Calls the program's own function at `at`.
fn call(at: u64, [a, b, c]: [u64; 3]) -> u64 {
    // SAFETY: the function's new beginning; it is called as the program has called it.
    let own: extern "C" fn(u64, u64, u64) -> u64 = unsafe { core::mem::transmute(at) };
    own(a, b, c)
}

// ---- a call --------------------------------------------------------------------------------------

/// A thread has come by an entry; its registers are in the frame.
pub fn called(t: Current, known: &Known, frame: &mut Frame) {
    let gprs = &mut frame.gprs;
    gprs.rip = known.pc;
    if requests::is_request(known) {
        return serve_client_request(t, known, gprs);
    }
    if known.back != way_back() {
        // (The unwind tables of the function find the caller; a thunk has none.)
        gprs.rip = known.back;
    }
    let Some(function) = function(known) else {
        return;
    };
    let i = t.own();
    if breakpoint(known).is_some() {
        i.unmade.set(true);
        t.attention.store(1, SeqCst);
        return;
    }
    match serve(
        (function, entries::passed(known).is_some()),
        Some(t),
        Some(gprs),
        [gprs.rdi, gprs.rsi, gprs.rdx],
    ) {
        Outcome::Returns(_) if function.goes_on() => {}
        Outcome::Returns(value) => gprs.rax = value,
        Outcome::NeedsRoom(bytes) => {
            i.needs_room.set(bytes);
            t.attention.store(1, SeqCst);
        }
        Outcome::Passes => {
            if let (Some(area), Some(own)) = (area(t), entries::passed(known)) {
                area.hit.store(own as *const Known as u64, Relaxed);
            }
        }
    }
    if i.new_code.get() != 0 || !i.pending.get().is_empty() {
        t.attention.store(1, SeqCst);
    }
}

/// Serves a client request.
fn serve_client_request(t: Current, known: &Known, gprs: &mut Gprs) {
    let i = t.own();
    match breakpoint(known)
        .is_none()
        .then(|| client::serve(t, gprs, known, false))
    {
        Some(client::Outcome::Returns(value)) => gprs.rdx = value,
        _ => i.unmade.set(true),
    }
    if i.unmade.get() || i.new_code.get() != 0 || !i.pending.get().is_empty() {
        t.attention.store(1, SeqCst);
    }
}

/// Ends a call in a signal frame: sets where the thread continues.
pub fn finish(t: Current, uc: &mut UContext, known: &Known) {
    if t.own().unmade.take() {
        if breakpoint(known).is_none_or(|b| stop_at(t, uc, b)) {
            uc.gprs.rip = known.pc;
            serve_here(t, uc, known);
        }
        return;
    }
    let bytes = t.own().needs_room.take();
    if bytes != 0 {
        // The call starts again.
        uc.gprs.rip = known.pc;
        park::request(t, uc, Request::GrowHeap { bytes });
        return;
    }
    if !stop(t, uc, known) {
        return;
    }
    uc.gprs.rip = known.back;
    if known.back == way_back() {
        go_back(uc);
    }
    if t.stepping.load(Relaxed) {
        raise::step_done(t, uc);
    }
}

/// Parks at the function's beginning for errors of its call, as if the call were still to be made. Returns `false` if
/// the debugger has moved the thread elsewhere.
fn stop(t: Current, uc: &mut UContext, known: &Known) -> bool {
    let events = t.own().pending.replace(Events::none());
    if events.is_empty() {
        return true;
    }
    uc.gprs.rip = known.pc;
    fault::stop_for(t, uc, &events);
    uc.gprs.rip == known.pc && !t.leaving.load(Relaxed)
}

/// Handles a fault in an entry that happens because gs is not ours. The thread continues at the function, or behind its
/// call. Returns `false` for other faults.
pub fn fault(t: Current, uc: &mut UContext) -> bool {
    if !leave(uc) {
        return false;
    }
    if !GS_TAKEN.load(Relaxed) && patches::enable(t) {
        return true;
    }
    let at = uc.gprs.rip;
    if let Some(known) = entries::at(at) {
        serve_here(t, uc, known);
    }
    true
}

/// A step has executed the first half of the jump: the whole call is made in that step, as if it were one instruction.
pub fn stepped(t: Current, uc: &mut UContext) -> bool {
    let Some(known) = entries::begun(uc.gprs.rip) else {
        return false;
    };
    let own = park::steps_itself(t, uc);
    uc.gprs.rip = known.pc;
    serve_here(t, uc, known);
    if own && !t.stepping.load(Relaxed) {
        raise::own_trap(t, uc);
    }
    true
}

/// Serves a call in a signal handler; the thread is at the beginning of a function.
fn serve_here(t: Current, uc: &mut UContext, known: &Known) {
    if left::LEFT.load(Relaxed) {
        // The program's own function begins there again.
        uc.gprs.rip = known.pc;
        return;
    }
    if requests::is_request(known) {
        return serve_request(t, uc, known);
    }
    let Some(function) = function(known) else {
        return;
    };
    loop {
        let args = [uc.gprs.rdi, uc.gprs.rsi, uc.gprs.rdx];
        let goes_on = entries::passed(known).is_some();
        match serve((function, goes_on), Some(t), Some(&uc.gprs), args) {
            Outcome::Returns(_) if function.goes_on() => uc.gprs.rip = known.back,
            Outcome::Returns(value) => {
                uc.gprs.rax = value;
                if !stop(t, uc, known) {
                    return;
                }
                go_back(uc);
            }
            Outcome::NeedsRoom(bytes) => {
                park::request(t, uc, Request::GrowHeap { bytes });
                continue;
            }
            Outcome::Passes => match entries::passed(known) {
                Some(own) => uc.gprs.rip = own.back,
                None => go_back(uc),
            },
        }
        if t.stepping.load(Relaxed) {
            raise::step_done(t, uc);
        }
        return;
    }
}

/// As [`serve_here`], for a client request.
fn serve_request(t: Current, uc: &mut UContext, known: &Known) {
    let mut asked = false;
    let value = loop {
        match client::serve(t, &uc.gprs, known, asked) {
            client::Outcome::Returns(value) => break value,
            client::Outcome::NeedsWatch(start, end) => {
                park::request(t, uc, Request::WatchTold { start, end });
                asked = true;
            }
            client::Outcome::NeedsCount => {
                park::request(t, uc, Request::CountLeaks);
                asked = true;
            }
        }
    };
    if !stop(t, uc, known) {
        return;
    }
    uc.gprs.rdx = value;
    uc.gprs.rip = known.back;
    if t.stepping.load(Relaxed) {
        raise::step_done(t, uc);
    }
}

/// A breakpoint inside the function's jump, where no thread can hit it: it is hit at the function's beginning.
fn breakpoint(known: &Known) -> Option<&'static Breakpoint> {
    let jump = match requests::is_request(known) {
        true => requests::JUMP,
        false => entries::JUMP,
    };
    g().breakpoints()
        .within(known.pc + 1..known.pc + jump as u64)
        .next()
}

/// Parks for such a breakpoint before the call is made. Returns `false` if the debugger has moved the thread elsewhere.
fn stop_at(t: Current, uc: &mut UContext, b: &Breakpoint) -> bool {
    if !breakpoints::wants_stop(b, t, uc) {
        return true;
    }
    let at = b.addr;
    uc.gprs.rip = at;
    park::end_step(t, uc);
    park::park(t, uc, Event::Breakpoint);
    uc.gprs.rip == at && !t.leaving.load(Relaxed)
}
