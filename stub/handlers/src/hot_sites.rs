//! Selects sites that are worth a patch: those that fault again and again.
//!
//! A hot site requests its patch, for which the world is stopped. Sites that have faulted twice wait in a ring and are
//! patched at the same time, since a stop takes longer than a patch. In a page of code with accesses that were hot in
//! an earlier run, the first fault is enough (`control/patches/hot.rs` of the stub's task).

use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering::*};

use ulpf_engine::exec::Site;
use ulpf_lib::ring::Unpatched;
use ulpf_lib::{PAGE_SIZE, TargetAddr};
use ulpf_stub_tables::patches::tsc;

use crate::patches;
use crate::runtime::mapped::CHANGES;
use crate::runtime::thread::Current;
use crate::sequences;

/// Further faults before the next try, for a site that could not be patched, or whose page could not be prepared.
pub const HOPELESS: i32 = 100_000;
/// The same for a site that has faulted although both are ready.
pub const MISSED: i32 = 64;

/// The same for a site whose code was written to a moment ago.
const WRITTEN: i32 = 96;

/// The same for a site whose code, or the code around it, may have changed by then.
const OTHERWISE: i32 = 4096;

/// Further faults before the next try, for the site at `pc` that has just been refused.
pub fn after(pc: u64) -> i32 {
    let generated = || patches::table().code_pages(pc, pc + 1).next().is_some();
    match patches::why_not(pc) {
        Unpatched::Cold => WRITTEN,
        Unpatched::Off | Unpatched::Instruction if !generated() => HOPELESS,
        _ => OTHERWISE,
    }
}

const ROOM: usize = 64;
/// Waiting sites that are worth a stop by themselves.
const ENOUGH: u32 = 24;

struct Waiting {
    site: AtomicPtr<Site>,
    page: AtomicU64,
    since: AtomicU64,
    changes: AtomicU64,
}

/// A site that waits.
pub struct Half {
    pub site: &'static Site,
    /// A page that it has accessed, the time of the access (TSC), and the number of changes of the mappings at that
    /// time.
    pub page: u64,
    pub since: u64,
    pub changes: u64,
}

/// Filled by threads, emptied by the stub's task with the world stopped. A site whose entry is overwritten becomes hot
/// by itself.
static WAITING: [Waiting; ROOM] = [const {
    Waiting {
        site: AtomicPtr::new(core::ptr::null_mut()),
        page: AtomicU64::new(0),
        since: AtomicU64::new(0),
        changes: AtomicU64::new(0),
    }
}; ROOM];
/// Sites that have come since the ring was emptied.
static COME: AtomicU32 = AtomicU32::new(0);

/// Pages of code with accesses that were hot in an earlier run, a bit for each. (Pages that are this far apart share
/// one.)
static HINTED: [AtomicU64; HINTED_PAGES / 64] = [const { AtomicU64::new(0) }; HINTED_PAGES / 64];
const HINTED_PAGES: usize = 1 << 16;
/// Hot accesses are saved for the next run.
pub static KEPT: AtomicBool = AtomicBool::new(false);

fn hinted(pc: u64) -> Option<(&'static AtomicU64, u64)> {
    let page = (pc / PAGE_SIZE) as usize % HINTED_PAGES;
    HINTED.get(page / 64).map(|word| (word, 1 << (page % 64)))
}

/// Sets whether the page of `pc` has such accesses that are not patched yet.
pub fn hint(pc: u64, some: bool) {
    if let Some((word, bit)) = hinted(pc) {
        match some {
            true => word.fetch_or(bit, Relaxed),
            false => word.fetch_and(!bit, Relaxed),
        };
    }
}

/// True if the page of `pc` may have such accesses.
pub fn is_hinted(pc: u64) -> bool {
    hinted(pc).is_some_and(|(word, bit)| word.load(Relaxed) & bit != 0)
}

/// Counts an access from this site without a stop, and requests a patch if it is worth one.
pub fn count_access(t: Current, site: &'static Site, at: TargetAddr) {
    if !patches::ENABLED.load(Relaxed)
        || sequences::active(t)
        || t.tgid() != crate::global::g().pid.load(Relaxed)
    {
        return;
    }
    let after = patches::AFTER.load(Relaxed) as i32;
    let heat = site.heat.fetch_add(1, Relaxed);
    let waits = heat == after / 4 && after > 1;
    // In a page with hints, the first access is enough.
    let known = heat == 0 && is_hinted(site.insn.pc);
    if heat >= after || known || waits && wait(site, at.page().0) {
        t.own().hot.set(Some((site, at.page().0)));
    }
}

/// Adds a site to the ring. Returns `true` if enough sites wait.
fn wait(site: &'static Site, page: u64) -> bool {
    let n = COME.fetch_add(1, Relaxed);
    if let Some(place) = WAITING.get(n as usize % ROOM) {
        place.page.store(page, Relaxed);
        place.since.store(tsc(), Relaxed);
        place.changes.store(CHANGES.load(Relaxed), Relaxed);
        place.site.store((&raw const *site).cast_mut(), Release);
    }
    n + 1 >= ENOUGH
}

/// Takes the waiting sites, and empties the ring.
pub fn take() -> impl Iterator<Item = Half> {
    COME.store(0, Relaxed);
    WAITING.iter().filter_map(|w| {
        let site = w.site.swap(core::ptr::null_mut(), Acquire);
        // SAFETY: sites are never freed.
        let site = unsafe { site.as_ref() }?;
        Some(Half {
            site,
            page: w.page.load(Relaxed),
            since: w.since.load(Relaxed),
            changes: w.changes.load(Relaxed),
        })
    })
}
