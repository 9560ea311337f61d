//! Finds the callers of functions that are called again and again from the same few places. The result is that of a
//! backtrace, without a walk if the thread's stack is one that was walked before ([`ulpf_stub_tables::backtrace_cache`]).

use ulpf_engine::cpu::Gprs;
use ulpf_lib::PAGE_SIZE;
use ulpf_lib::ring::MAX_FRAMES;
use ulpf_stub_tables::backtrace_cache::{MOST_CALLERS, Stack, Top};
use ulpf_stub_tables::code::Memory;
use ulpf_stub_tables::rows::{CfaRule, Place, Rows};

use crate::cached_unwind;
use crate::runtime::asm::ulpf_same;
use crate::runtime::thread::Current;
use crate::runtime::{debug_registers, memory};
use crate::unwind;
use crate::walk::Walk;

/// Callers that distinguish stacks.
const LEVELS: usize = 3;

/// The callers, innermost first, at most `want` of them, and the number that `note` returns for them.
pub fn callers<R>(
    t: Current,
    gprs: &Gprs,
    want: usize,
    note: impl Fn(&[u64]) -> u32,
    tell: impl FnOnce(u32, &[u64]) -> R,
) -> R {
    let mut frames = [0; MAX_FRAMES];
    let taken = unwind::code().zip(unwind::memory(t));
    let Some((code, mut memory)) = taken.filter(|_| want <= MOST_CALLERS) else {
        let n = unwind::backtrace(t, gprs, &mut frames, want);
        let list = frames.get(..n).unwrap_or_default();
        return tell(note(list), list);
    };
    let top = Top {
        ip: gprs.rip,
        sp: gprs.rsp,
        thread: t.tid() as u64,
    };
    let memory: &mut Memory = &mut memory;
    let key = key(&memory.rows, top);
    if let Some(known) = memory.stacks.slot(key).filter(|s| s.top == top)
        && is_same(known, gprs)
    {
        return tell(known.number as u32, known.callers());
    }
    let mut walk = memory.stacks.met(key).then(|| Walk::begin(top));
    let n = unwind::walk(t, code, gprs, (&mut frames, want), memory, walk.as_mut());
    let list = frames.get(..n).unwrap_or_default();
    let number = note(list);
    if let Some(mut walk) = walk
        && number != 0
        && walk.is_whole
        && walk.stack.has(list)
        && let Some(slot) = memory.stacks.slot(key)
    {
        walk.stack.number = number.into();
        *slot = walk.stack;
    }
    tell(number, list)
}

/// A key made of the stack's beginning and its innermost callers, as far as these are easily found.
fn key(rows: &Rows, top: Top) -> u64 {
    let mut stack = cached_unwind::Stack::begin();
    let (mut key, mut place, mut sp) = (top.ip ^ top.sp << 20, Place::here(top.ip), top.sp);
    for _ in 0..LEVELS {
        let Some(row) = rows.find(place).filter(|row| row.cfa == CfaRule::Rsp) else {
            break;
        };
        sp = sp.wrapping_add(row.end.into());
        let Some(caller) = stack.word(sp.wrapping_sub(8)) else {
            break;
        };
        key = key.rotate_left(17) ^ caller;
        place = Place::caller(caller);
    }
    key
}

/// True if the stack that begins there has the same callers.
fn is_same(known: &Stack, gprs: &Gprs) -> bool {
    let words = known.words();
    let (from, span) = (known.top.sp, known.span);
    if debug_registers::active() || known.by_bp != 0 && known.bp != gprs.rbp {
        return false;
    }
    // (Guarded pages are not read, to avoid faults.)
    let mut page = from & !(PAGE_SIZE - 1);
    while page < from + span {
        if memory::reachable(page) != page {
            return false;
        }
        page += PAGE_SIZE;
    }
    // SAFETY: reads only; a fault ends the comparison with words left.
    unsafe { ulpf_same(from, words.as_ptr(), words.len()) == 0 }
}
