//! The last resort of exactness: a call whose memory cannot be listed (pointers behind pointers, a call without a row).
//! It is made with all guards lifted and all other threads stopped. Its writes are found by comparing.

use core::sync::atomic::Ordering::SeqCst;

use ulpf_lib::{AccessKind, PAGE_SIZE};

use super::buffers;
use super::call::{Args, raw};
use super::commands::Memory;
use super::scratch::Scratch;
use crate::global::g;
use crate::runtime::events::Request;
use crate::runtime::frame::UContext;
use crate::runtime::mapped::CHANGES;
use crate::runtime::memory;
use crate::runtime::park;
use crate::runtime::thread::{Call, Current};
use crate::runtime::tracer;

/// Bytes behind a pointer that are compared.
const REACH: u64 = 2 * PAGE_SIZE;

fn pointers(a: &Args) -> impl Iterator<Item = u64> + '_ {
    a.iter().copied().filter(|p| g().alias_of(*p).is_some())
}

/// True if a call of this sort points into our pages. (A first attempt that ends with EFAULT comes here, too, so deeper
/// pointers are covered.)
pub fn needed(memory: Memory, a: &Args) -> bool {
    match memory {
        Memory::Everywhere => g().guarded(),
        Memory::Open => pointers(a).next().is_some(),
        _ => false,
    }
}

/// Makes the call. It must not wait for another thread of the program.
pub fn call(t: Current, uc: &mut UContext, nr: u64, a: &Args, given: &Args) -> i64 {
    if tracer::holds(t) {
        // The other threads cannot be stopped. The kernel refuses inaccessible memory.
        return raw(nr, given);
    }
    park::request(
        t,
        uc,
        Request::OpenBegin {
            start: 0,
            end: ulpf_lib::addr::USER_END,
        },
    );
    let mut s = Scratch::new(t);
    // Memory that an ioctl or the like leads to is rarely far away; memory beyond the reach is not compared.
    for p in pointers(a) {
        s.keep(p & !(PAGE_SIZE - 1), REACH);
    }
    let result = raw(nr, given);
    CHANGES.fetch_add(1, SeqCst);
    let call = Call {
        nr,
        args: *a,
        result,
    };
    report(t, uc, &call, &s);
    park::request(t, uc, Request::End);
    result
}

/// Reports each stretch that has changed as a hit.
pub fn report(t: Current, uc: &UContext, call: &Call, s: &Scratch) {
    for (addr, len) in s.kept.parts() {
        // From the first byte that differs to the last.
        let old = s.kept.get(addr, len).unwrap_or(&[]);
        let differs = |i: &usize| {
            let now = memory::get::<u8>(addr + *i as u64);
            now.is_some() && now != old.get(*i).copied()
        };
        let Some(first) = (0..old.len()).find(differs) else {
            continue;
        };
        let last = (0..old.len()).rfind(differs).unwrap_or(first);
        let n = (last - first + 1) as u64;
        buffers::hit(
            t,
            uc,
            call,
            addr + first as u64,
            n,
            AccessKind::Write,
            &s.kept,
        );
    }
}
