//! A thread has hit a breakpoint.

use core::sync::atomic::Ordering::*;

use ulpf_engine::agent;
use ulpf_stub_tables::breakpoints::{Breakpoint, INT3};

use crate::global::g;
use crate::runtime::frame::UContext;
use crate::runtime::memory;
use crate::runtime::thread::Current;

/// Evaluates the conditions on the thread that has hit the breakpoint.
pub fn wants_stop(b: &Breakpoint, t: Current, uc: &UContext) -> bool {
    if !b.debuggers || !t.is_debugged() {
        return false; // ours, or a vfork child that is not followed
    }
    !g().debugger.load(Relaxed) || b.holds(&mut Machine { uc })
}

/// Registers and memory for agent expressions.
struct Machine<'a> {
    uc: &'a UContext,
}

impl agent::AgentContext for Machine<'_> {
    fn reg(&mut self, n: u16) -> Option<u64> {
        agent::register(&self.uc.gprs, n)
    }
    fn read(&mut self, addr: u64, buf: &mut [u8]) -> bool {
        memory::look(addr, buf) == buf.len()
    }
}

/// True if a breakpoint whose memory was missing may lie in what a call has just mapped.
pub fn waits_in(start: u64, end: u64) -> bool {
    // The breakpoint may have been there before, in memory that was unmapped.
    let waits = |b: &Breakpoint| !b.there || memory::get::<u8>(b.addr) != Some(INT3);
    let mut all = g().breakpoints().within(start..end);
    all.any(|b| b.hardware && waits(b))
}
