//! Generated code of the program: which of it may be patched, and which pages are write-protected meanwhile.
//!
//! A patch in memory that the program can write to lasts until the program writes there. The page is write-protected
//! before the jump is placed, and the first store finds the original code (`stub/handlers/src/generated.rs`). Memory
//! that is switched between writable and executable is handled at the call (`syscalls/mappings.rs`).
//!
//! **Readers.** Executable memory cannot be protected from reads. Runtimes read their own code: targets of calls and
//! jumps, constants that a collector has to know, and all of it where a collector moves code (V8). So patches are
//! limited to runtimes that are known not to move code that has run, or whose moves are seen (`collector.rs`). And no
//! jump overwrites operands that a runtime reads (`Group::spares_operands`).

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::SeqCst;

use linux_raw_sys::general as k;
use ulpf_lib::PAGE_SIZE;
use ulpf_lib::guard::maps::{Vma, VmaKind};
use ulpf_lib::guard::{PROT_EXEC, PROT_READ, PROT_WRITE};
use ulpf_lib::sys;

use super::collector::Collector;
use super::parked;
use crate::files;
use ulpf_stub_handlers::generated::{CLOSED, FAR};
use ulpf_stub_handlers::global::g;
use ulpf_stub_handlers::hot_sites::Half;
use ulpf_stub_handlers::patches;
use ulpf_stub_handlers::runtime::mapped::CHANGES;
use ulpf_stub_handlers::runtime::thread::{State, Thread};
use ulpf_stub_handlers::stopped::Stopped;
use ulpf_stub_handlers::syscalls::sites::FILTER;
use ulpf_stub_tables::patches::{CodePage, tsc};

/// Files of the runtimes whose code may be patched: HotSpot, Guile, LuaJIT.
const RUNTIMES: [&[u8]; 4] = [b"/libjvm.so", b"/libguile-", b"/libluajit-", b"/luajit"];
/// How long, in nanoseconds, a page stays open that was written to after it was patched. The time doubles with each
/// such write, up to the last. (Usually more is written in a moment, and all patches of the page have to be paid for
/// again.)
const OPEN_FOR: u64 = 250_000;
const MOST_DOUBLED: u32 = 10;
/// Each closed page is one more mapping.
const MOST_CLOSED: usize = 4096;

/// A page that was written to when it had patches.
#[derive(Clone, Copy)]
struct Written {
    times: u32,
    /// When it may be closed again (`SharedHeader::nanos`); `u64::MAX`: never.
    again: u64,
}

/// Whether generated code may be patched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum May {
    Yes,
    Later,
    No,
}

#[derive(Default)]
pub struct Generated {
    written: BTreeMap<u64, Written>,
    /// Whether one of the runtimes is loaded, and the number of mapping changes at which this was determined.
    known: Option<(u64, bool)>,
    pub collector: Collector,
}

fn now() -> u64 {
    g().header().map_or(0, |h| h.nanos(tsc()))
}

fn pages(start: u64, end: u64) -> impl Iterator<Item = u64> {
    (start & !(PAGE_SIZE - 1)..end).step_by(PAGE_SIZE as usize)
}

/// Returns whether the program has generated this code itself.
pub fn is_generated(vma: &Vma) -> bool {
    const CODE: u8 = PROT_READ | PROT_EXEC;
    vma.kind == VmaKind::Anonymous && !vma.shared && vma.prot & CODE == CODE
}

impl Generated {
    /// Whether generated code in `[start, end)` may be patched.
    pub fn may_patch(&self, start: u64, end: u64) -> May {
        let again = |page| self.written.get(&page).map_or(0, |w| w.again);
        match pages(start, end).map(again).max() {
            _ if !self.is_known() => May::No,
            _ if self.collector.is_at_work() => May::Later,
            Some(u64::MAX) => May::No,
            Some(again) if again > now() => May::Later,
            _ => May::Yes,
        }
    }

    /// Returns whether the code that faulted at the time of `half` is unchanged. If not, the starts of its instructions
    /// are unknown.
    pub fn is_same(&self, vma: &Vma, half: &Half) -> bool {
        let pc = half.site.insn.pc;
        if half.changes != CHANGES.load(SeqCst) {
            return false;
        }
        let mut known = patches::table().code_pages(pc, pc + u64::from(half.site.insn.len));
        match vma.prot & PROT_WRITE {
            0 => known.all(|(_, page)| page.closed && page.since < half.since),
            // As it was before we write-protected it: or it is not protected.
            _ => {
                let (mut any, mut all) = (false, true);
                known.for_each(|(_, page)| {
                    any = true;
                    all &= page.closed && page.since < half.since;
                });
                any && all
            }
        }
    }

    fn is_known(&self) -> bool {
        self.known.is_some_and(|known| known.1) || self.collector.is_known()
    }

    /// Looks for runtimes, if much was mapped since. Returns the addresses where collectors that move code begin, for
    /// breakpoints.
    pub fn look(&mut self, stopped: &mut Stopped) -> Vec<u64> {
        /// Number of mapping changes between two looks at the mappings.
        const OFTEN: u64 = 64;
        let now = CHANGES.load(SeqCst);
        if let Some((at, known)) = self.known
            && ((known || self.collector.is_known()) || now.wrapping_sub(at) < OFTEN)
        {
            return Vec::new();
        }
        let maps = files::read_file("/proc/self/maps\0").unwrap_or_default();
        let has = |name: &[u8]| maps.windows(name.len()).any(|part| part == name);
        self.known = Some((now, RUNTIMES.into_iter().any(has)));
        self.collector.find(stopped)
    }

    /// A file has been mapped that may be another runtime.
    pub fn code_has_come(&mut self) {
        self.known = None;
    }

    /// The pages are about to be read: forgets what is known of them.
    pub fn read(&mut self, stopped: &mut Stopped, start: u64, end: u64) {
        open(stopped, start, end);
    }

    /// Closes the pages of `[start, end)`, whose protection is `prot` as far as is known: the program's own, or what
    /// we have left of it. `false`: not all of them.
    pub fn close(&self, stopped: &mut Stopped, (start, end): (u64, u64), prot: u8) -> bool {
        let known = &mut stopped.tables_mut().patches.written;
        for at in pages(start, end) {
            let prot = known.get(&at).map_or(prot, |page| page.prot);
            if prot & PROT_WRITE == 0 || known.get(&at).is_some_and(|page| page.closed) {
                continue;
            }
            if known.len() >= MOST_CLOSED || !protect(at, prot & !PROT_WRITE) {
                return false;
            }
            known.insert(
                at,
                CodePage {
                    prot,
                    closed: true,
                    since: tsc(),
                },
            );
            CLOSED.store(true, SeqCst);
            FILTER.add(at, at + PAGE_SIZE);
        }
        true
    }

    /// The pages are about to be written. (Their patches have been removed.)
    pub fn written(&mut self, stopped: &mut Stopped, start: u64, end: u64) {
        for page in open(stopped, start, end) {
            let times = self.written.get(&page).map_or(0, |w| w.times);
            let again = now() + (OPEN_FOR << times.min(MOST_DOUBLED));
            let times = times + 1;
            self.written.insert(page, Written { times, again });
        }
    }

    /// Other watches need these pages: they are not patched any more.
    pub fn give_up(&mut self, stopped: &mut Stopped, start: u64, end: u64) {
        for page in open(stopped, start, end) {
            let never = Written {
                times: 0,
                again: u64::MAX,
            };
            self.written.insert(page, never);
        }
    }

    /// The mappings there are about to change.
    pub fn forget(&mut self, stopped: &mut Stopped, start: u64, end: u64) {
        open(stopped, start, end);
        let known = &mut stopped.tables_mut().patches.written;
        known.retain(|at, _| *at < start || *at >= end);
        self.written.retain(|at, _| *at < start || *at >= end);
    }
}

/// Returns whether a thread is in a system call that may be writing there.
pub fn in_use(stopped: &mut Stopped, start: u64, end: u64) -> bool {
    let start = start & !(PAGE_SIZE - 1);
    let calls = |t: &&Thread| t.state() == State::InSyscall;
    g().threads.iter().filter(calls).any(|t| {
        let passed = parked::frame(t, stopped).map(|c| {
            let r = &c.gprs;
            [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9]
        });
        let near = |at: &u64| *at < end && start < at.saturating_add(FAR);
        passed.is_none_or(|arguments| arguments.iter().any(near))
    })
}

/// Opens the pages of `[start, end)` that are closed, and returns them.
fn open(stopped: &mut Stopped, start: u64, end: u64) -> Vec<u64> {
    let patches = &mut stopped.tables_mut().patches;
    let all: Vec<_> = patches.closed(start, end).collect();
    for (at, prot) in &all {
        protect(*at, *prot);
        if let Some(page) = patches.written.get_mut(at) {
            page.closed = false;
        }
    }
    all.into_iter().map(|(at, _)| at).collect()
}

fn protect(page: u64, prot: u8) -> bool {
    // SAFETY: code of the program, which stays what it is, and may be read and executed before and after.
    unsafe { sys!(k::__NR_mprotect, page, PAGE_SIZE, u64::from(prot)) }.is_ok()
}
