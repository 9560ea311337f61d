//! Code that the program generates: which of it may be patched, and which pages are closed for writing meanwhile.
//!
//! A patch in memory that the program can write to lasts until somebody does: its page is closed before the jump is
//! there, and the first store finds the original code (`stub/handlers/src/generated.rs`). What is switched between
//! writable and executable is seen at the call (`syscalls/mappings.rs`).
//!
//! **Who reads.** Nobody can be kept from reading what may be executed. Runtimes read their own code: targets of
//! calls and jumps, constants that a collector has to know, and, where a collector moves code, all of it (V8). So only
//! code of runtimes is patched of which it is known that they do not move code they have run; and no jump is put
//! over what they do read (`Group::spares_operands`).

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cell::Cell;
use core::sync::atomic::Ordering::SeqCst;

use linux_raw_sys::general as k;
use ulpf_lib::PAGE_SIZE;
use ulpf_lib::guard::maps::{Vma, VmaKind};
use ulpf_lib::guard::{PROT_EXEC, PROT_READ, PROT_WRITE};
use ulpf_lib::sys;

use crate::files;
use ulpf_stub_handlers::global::g;
use ulpf_stub_handlers::rest::AtRest;
use ulpf_stub_handlers::runtime::mapped::CHANGES;
use ulpf_stub_handlers::syscalls::sites::FILTER;
use ulpf_stub_tables::patches::tsc;

/// Files of the runtimes whose code may be patched: HotSpot, Guile, LuaJIT.
const RUNTIMES: [&[u8]; 4] = [b"/libjvm.so", b"/libguile-", b"/libluajit-", b"/luajit"];
/// How long, in nanoseconds, a page stays open that was written to after it was patched: that doubles each time, up to
/// the last. (More is written in a moment, mostly; and all patches of the page have to be paid for again.)
const OPEN_FOR: u64 = 1_000_000;
const MOST_DOUBLED: u32 = 8;
/// Each page that is closed is a mapping more.
const MOST_CLOSED: usize = 4096;

/// A page that was written to when it had patches.
#[derive(Clone, Copy)]
struct Written {
    times: u32,
    /// When it may be closed again (`SharedHeader::nanos`); `u64::MAX`: never.
    again: u64,
}

/// May it be patched?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum May {
    Yes,
    Later,
    No,
}

#[derive(Default)]
pub struct Generated {
    written: BTreeMap<u64, Written>,
    /// Is one of the runtimes there? Asked after so many changes of the mappings.
    known: Cell<Option<(u64, bool)>>,
}

fn now() -> u64 {
    g().header().map_or(0, |h| h.nanos(tsc()))
}

fn pages(start: u64, end: u64) -> impl Iterator<Item = u64> {
    (start & !(PAGE_SIZE - 1)..end).step_by(PAGE_SIZE as usize)
}

/// Has the program made this code itself?
pub fn is_generated(vma: &Vma) -> bool {
    const CODE: u8 = PROT_READ | PROT_EXEC;
    vma.kind == VmaKind::Anonymous && !vma.shared && vma.prot & CODE == CODE
}

impl Generated {
    /// May generated code in `[start, end)` be patched?
    pub fn may_patch(&self, start: u64, end: u64) -> May {
        let again = |page| self.written.get(&page).map_or(0, |w| w.again);
        match pages(start, end).map(again).max() {
            _ if !self.is_known() => May::No,
            Some(u64::MAX) => May::No,
            Some(again) if again > now() => May::Later,
            _ => May::Yes,
        }
    }

    fn is_known(&self) -> bool {
        /// The mappings are not looked at for each change of theirs.
        const OFTEN: u64 = 64;
        let now = CHANGES.load(SeqCst);
        if let Some((at, known)) = self.known.get()
            && (known || now.wrapping_sub(at) < OFTEN)
        {
            return known;
        }
        let maps = files::read_file("/proc/self/maps\0").unwrap_or_default();
        let has = |name: &[u8]| maps.windows(name.len()).any(|part| part == name);
        let known = RUNTIMES.into_iter().any(has);
        self.known.set(Some((now, known)));
        known
    }

    /// Closes the pages of `[start, end)`, whose protection is the program's `prot`. `false`: not all of them.
    pub fn close(&self, rest: &mut AtRest, (start, end): (u64, u64), prot: u8) -> bool {
        if prot & PROT_WRITE == 0 {
            return true;
        }
        let closed = &mut rest.tables_mut().patches.closed;
        for page in pages(start, end) {
            if closed.contains_key(&page) {
                continue;
            }
            let left = u64::from(prot & !PROT_WRITE);
            // SAFETY: code of the program that stays what it is.
            let done = unsafe { sys!(k::__NR_mprotect, page, PAGE_SIZE, left) };
            if closed.len() >= MOST_CLOSED || done.is_err() {
                return false;
            }
            closed.insert(page, prot);
            FILTER.add(page, page + PAGE_SIZE);
        }
        true
    }

    /// Somebody is about to write there. (The patches of these pages have gone.)
    pub fn written(&mut self, rest: &mut AtRest, start: u64, end: u64) {
        for page in open(rest, start, end) {
            let times = self.written.get(&page).map_or(0, |w| w.times);
            let again = now() + (OPEN_FOR << times.min(MOST_DOUBLED));
            let times = times + 1;
            self.written.insert(page, Written { times, again });
        }
    }

    /// Other watches need these pages: nothing is patched there any more.
    pub fn give_up(&mut self, rest: &mut AtRest, start: u64, end: u64) {
        for page in open(rest, start, end) {
            let never = Written {
                times: 0,
                again: u64::MAX,
            };
            self.written.insert(page, never);
        }
    }

    /// The mappings there are about to change.
    pub fn forget(&mut self, rest: &mut AtRest, start: u64, end: u64) {
        open(rest, start, end);
        self.written.retain(|page, _| *page < start || *page >= end);
    }
}

/// Opens the pages of `[start, end)` that are closed: which they were.
fn open(rest: &mut AtRest, start: u64, end: u64) -> Vec<u64> {
    let patches = &mut rest.tables_mut().patches;
    let all: Vec<_> = patches.closed(start, end).collect();
    for (page, prot) in &all {
        // SAFETY: the protection that the program has given its page.
        let _ = unsafe { sys!(k::__NR_mprotect, *page, PAGE_SIZE, u64::from(*prot)) };
        patches.closed.remove(page);
    }
    all.into_iter().map(|(page, _)| page).collect()
}
