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
use core::cell::Cell;
use core::sync::atomic::Ordering::SeqCst;

use linux_raw_sys::general as k;
use ulpf_lib::PAGE_SIZE;
use ulpf_lib::guard::maps::{Vma, VmaKind};
use ulpf_lib::guard::{PROT_EXEC, PROT_READ, PROT_WRITE};
use ulpf_lib::sys;

use crate::files;
use ulpf_stub_handlers::rest::AtRest;
use ulpf_stub_handlers::runtime::mapped::CHANGES;
use ulpf_stub_handlers::syscalls::sites::FILTER;

/// Files of the runtimes whose code may be patched: HotSpot, Guile, LuaJIT.
const RUNTIMES: [&[u8]; 4] = [b"/libjvm.so", b"/libguile-", b"/libluajit-", b"/luajit"];
/// So often a page may be written to after it was patched. (Its next patches have to be paid for again.)
const MOST: u32 = 32;
/// Each page that is closed is a mapping more.
const MOST_CLOSED: usize = 4096;

#[derive(Default)]
pub struct Generated {
    /// How often pages were written to that had patches.
    written: BTreeMap<u64, u32>,
    /// Is one of the runtimes there? Asked after so many changes of the mappings.
    known: Cell<Option<(u64, bool)>>,
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
    pub fn may_patch(&self, start: u64, end: u64) -> bool {
        let calm = |page| self.written.get(&page).is_none_or(|n| *n < MOST);
        pages(start, end).all(calm) && self.is_known()
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
        for page in pages(start, end)
            .filter(|page| !closed.contains_key(page))
            .collect::<alloc::vec::Vec<_>>()
        {
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
            *self.written.entry(page).or_insert(0) += 1;
        }
    }

    /// Other watches need these pages: nothing is patched there any more.
    pub fn give_up(&mut self, rest: &mut AtRest, start: u64, end: u64) {
        for page in open(rest, start, end) {
            self.written.insert(page, MOST);
        }
    }

    /// The mappings there are about to change.
    pub fn forget(&mut self, rest: &mut AtRest, start: u64, end: u64) {
        open(rest, start, end);
        self.written.retain(|page, _| *page < start || *page >= end);
    }
}

/// Opens the pages of `[start, end)` that are closed: which they were.
fn open(rest: &mut AtRest, start: u64, end: u64) -> alloc::vec::Vec<u64> {
    let patches = &mut rest.tables_mut().patches;
    let all: alloc::vec::Vec<_> = patches.closed(start, end).collect();
    for (page, prot) in &all {
        // SAFETY: the protection that the program has given its page.
        let _ = unsafe { sys!(k::__NR_mprotect, *page, PAGE_SIZE, u64::from(*prot)) };
        patches.closed.remove(page);
    }
    all.into_iter().map(|(page, _)| page).collect()
}
