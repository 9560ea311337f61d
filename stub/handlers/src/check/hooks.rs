//! A call that has come by an entry ([`super::entries`]), and its end.

use core::sync::atomic::Ordering::*;

use ulpf_stub_tables::patches::Known;

use super::entries::{Function, MOST, function, go_back, known, leave, way_back};
use super::serve::{Outcome, serve};
use crate::direct_frame::Frame;
use crate::patches;
use crate::runtime::areas::GS_TAKEN;
use crate::runtime::events::Request;
use crate::runtime::frame::UContext;
use crate::runtime::park;
use crate::runtime::thread::Current;

/// In a forked child, on its own stack.
#[unsafe(no_mangle)]
extern "C" fn ulpf_check_alone(a: u64, b: u64, c: u64, known: &Known) -> u64 {
    let Some(function) = function(known) else {
        return 0;
    };
    if function == Function::NewArray {
        // SAFETY: the function of the program's that this one would have gone on to, with the same arguments.
        let goes_on: extern "C" fn(u64, u64, u64) -> u64 =
            unsafe { core::mem::transmute(known.back) };
        return goes_on(a, b, c);
    }
    match serve(function, None, None, [a, b, c]) {
        Outcome::Returns(value) => value,
        Outcome::NeedsRoom(_) => 0,
    }
}

// ---- a call --------------------------------------------------------------------------------------

/// A thread has come by an entry; its registers are in the frame.
pub fn called(t: Current, known: &Known, frame: &mut Frame) {
    let gprs = &mut frame.gprs;
    gprs.rip = known.pc;
    let Some(function) = function(known) else {
        return;
    };
    let i = t.own();
    match serve(
        function,
        Some(t),
        Some(gprs),
        [gprs.rdi, gprs.rsi, gprs.rdx],
    ) {
        Outcome::Returns(_) if function == Function::NewArray => {}
        Outcome::Returns(value) => gprs.rax = value,
        Outcome::NeedsRoom(bytes) => {
            i.needs_room.set(bytes);
            t.attention.store(1, SeqCst);
        }
    }
    if i.new_code.get() != 0 {
        t.attention.store(1, SeqCst);
    }
}

/// The rest of a call, in a signal frame: where the thread goes on.
pub fn finish(t: Current, uc: &mut UContext, known: &Known) {
    let bytes = t.own().needs_room.take();
    if bytes != 0 {
        // It is begun anew.
        uc.gprs.rip = known.pc;
        park::request(t, uc, Request::GrowHeap { bytes });
        return;
    }
    uc.gprs.rip = known.back;
    if known.back == way_back() {
        go_back(uc);
    }
}

/// A fault: is it that of an entry, because gs is not ours? Then the thread goes on at the function, or behind its call.
pub fn fault(t: Current, uc: &mut UContext) -> bool {
    if !leave(uc) {
        return false;
    }
    if !GS_TAKEN.load(Relaxed) && patches::enable(t) {
        return true;
    }
    let at = uc.gprs.rip;
    let which = (0..MOST).find_map(|n| known(n).filter(|k| k.pc == at));
    let Some((known, function)) = which.and_then(|k| Some((k, function(k)?))) else {
        return true;
    };
    loop {
        let args = [uc.gprs.rdi, uc.gprs.rsi, uc.gprs.rdx];
        match serve(function, Some(t), Some(&uc.gprs), args) {
            Outcome::Returns(_) if function == Function::NewArray => {
                uc.gprs.rip = known.back;
                return true;
            }
            Outcome::Returns(value) => {
                uc.gprs.rax = value;
                go_back(uc);
                return true;
            }
            Outcome::NeedsRoom(bytes) => park::request(t, uc, Request::GrowHeap { bytes }),
        }
    }
}
