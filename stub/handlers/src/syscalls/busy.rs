//! Selects system-call sites that are worth a patch.

use core::sync::atomic::Ordering::*;

use super::seccomp;
use super::sites::{AFTER, ENABLED, KNOWN, has, put, seen};
use super::sites_code;
use crate::global::g;
use crate::runtime::events::Request;
use crate::runtime::frame::UContext;
use crate::runtime::park;
use crate::runtime::thread::Current;

/// Dispatch has served a call, and the context is complete. Requests a patch of its site if it has become worth one.
pub fn note(t: Current, uc: &mut UContext, insn: u64, nr: u64) {
    if nr >= KNOWN as u64 || !ENABLED.load(Relaxed) {
        return;
    }
    let Some(s) = seen(insn) else { return };
    s.signals.fetch_add(1, Relaxed);
    if !sites_code::may_serve(nr) || !seccomp::passes(nr) {
        return;
    }
    if s.refused.load(Relaxed) || has(&s.done, nr) {
        return;
    }
    put(&s.met, nr);
    let after = AFTER.load(Relaxed);
    if s.count.fetch_add(1, Relaxed) + 1 < after {
        return;
    }
    let i = t.own();
    if t.stepping.load(Relaxed)
        || i.own_step.get().is_some()
        || t.leaving.load(Relaxed)
        || i.deferred_len.get() > 0
        || !i.pending.get().is_empty()
        || t.tgid() != g().pid.load(Relaxed)
    {
        return;
    }
    s.count.store(0, Relaxed);
    park::request(t, uc, Request::Patch { insn });
}
