//! Records the last writer of each byte (`ulpf_lib::last_writer`), for stores that a handler makes or accounts for. Trampolines
//! write the records of their own stores (`engine/src/patch/last_writer.rs`).

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use ulpf_engine::cpu::Gprs;
use ulpf_engine::patch::Writers;
use ulpf_lib::last_writer::{
    CALLERS, CALLERS_OFFSET, FIRST_DISTANCE_NS, LastWriter, RECORD, RECORDS_OFFSET, SITES,
    SITES_OFFSET, STAMPS, STAMPS_AT_ONE_RATE, Site, pair, tables_len,
};
use ulpf_lib::ring::{Area, MAX_FRAMES};
use ulpf_lib::{PAGE_SIZE, TargetAddr, place};
use ulpf_stub_tables::patches::tsc;

use crate::cause::Cause;
use crate::global::g;
use crate::runtime::areas::area;
use crate::runtime::memory;
use crate::runtime::thread::Current;
use crate::unwind;

/// The tables, or 0 while nothing is recorded.
static TABLES: AtomicU64 = AtomicU64::new(0);
/// The next stamp.
static NEXT: AtomicU32 = AtomicU32::new(1);

/// Address of the tables; `None` while nothing is recorded.
pub fn tables() -> Option<u64> {
    Some(TABLES.load(Acquire)).filter(|at| *at != 0)
}

/// Records begin, in tables of [`tables_len`] zeroed bytes that stay mapped.
pub fn begin(at: u64) {
    TABLES.store(at, Release);
}

/// Address of the record of the byte whose alias is 0: that of any other is four times as far behind it.
fn origin() -> Option<u64> {
    let records = tables()? + RECORDS_OFFSET;
    Some(records.wrapping_sub(place::memory().start.wrapping_mul(RECORD)))
}

/// The tables that trampolines use.
pub fn writers() -> Option<Writers> {
    Some(Writers {
        records: origin()?,
        callers: tables()? + CALLERS_OFFSET,
    })
}

/// Bytes of the tables.
pub fn len() -> u64 {
    tables_len(place::MEMORY_LEN)
}

// ---- sites ---------------------------------------------------------------------------------------

fn sites(tables: u64) -> &'static [AtomicU64] {
    // SAFETY: `begin`'s promise; any bits are a word.
    unsafe { core::slice::from_raw_parts((tables + SITES_OFFSET) as *const AtomicU64, SITES) }
}

/// The site of an instruction.
pub fn instruction(pc: u64) -> Site {
    Site {
        pc,
        called: false,
        books: false,
        call: None,
    }
}

/// The number of a site, which gets one if it has none; 0: there are too many.
pub fn site(site: Site) -> u32 {
    const MOST_STEPS: usize = 64;
    let Some(tables) = tables() else { return 0 };
    let (word, all) = (site.word(), sites(tables));
    for step in 0..MOST_STEPS {
        let n = (site.place() + step) % SITES;
        let Some(slot) = all.get(n).filter(|_| n != 0) else {
            continue;
        };
        let known = slot.load(Acquire);
        // (Another thread may take the place now, perhaps for the same site.)
        let taken = known == 0 && slot.compare_exchange(0, word, AcqRel, Acquire).is_ok();
        if taken || slot.load(Acquire) == word {
            return n as u32;
        }
    }
    0
}

/// The site with that number.
pub fn site_of(writer: LastWriter) -> Option<Site> {
    let word = sites(tables()?).get(writer.site())?.load(Acquire);
    Site::of(word)
}

// ---- stamps --------------------------------------------------------------------------------------

/// A thread, and since when.
#[repr(C)]
struct Stamp {
    /// TSC.
    since: AtomicU64,
    tid: AtomicU64,
}

fn stamps(tables: u64) -> &'static [Stamp] {
    // SAFETY: as for `sites`.
    unsafe { core::slice::from_raw_parts(tables as *const Stamp, STAMPS) }
}

/// The thread and the TSC of a stamp.
pub fn stamp_of(writer: LastWriter) -> Option<(u32, u64)> {
    let stamp = stamps(tables()?).get(writer.stamp())?;
    let since = stamp.since.load(Acquire);
    (since != 0).then(|| (stamp.tid.load(Relaxed) as u32, since))
}

/// Ticks of the TSC between two stamps of a thread.
fn distance() -> u64 {
    let doubled = NEXT.load(Relaxed) / STAMPS_AT_ONE_RATE;
    let nanos = u128::from(FIRST_DISTANCE_NS) << 32;
    let mult = g().header().map_or(1 << 32, |h| h.tsc_mult.max(1));
    ((nanos / u128::from(mult)) as u64) << doubled
}

/// Nanoseconds after which the stamps of running threads are to be renewed.
pub fn distance_ns() -> u64 {
    FIRST_DISTANCE_NS << (NEXT.load(Relaxed) / STAMPS_AT_ONE_RATE)
}

/// Whether the thread has had its stamp for long enough.
pub fn is_due(of: &Area) -> bool {
    let stamped = of.stamped.load(Relaxed);
    stamped == 0 || tsc().wrapping_sub(stamped) >= distance()
}

/// The thread whose area this is gets another stamp, if it has had its own for long enough. Any task may call this.
pub fn renew(of: &Area, tid: u32) {
    let Some(tables) = tables().filter(|_| is_due(of)) else {
        return;
    };
    let now = tsc();
    let n = match NEXT.load(Relaxed) {
        // Their number is used up.
        n if n as usize >= STAMPS => 0,
        _ => NEXT.fetch_add(1, Relaxed),
    };
    let stamp = stamps(tables).get(n as usize).filter(|_| n != 0);
    if let Some(stamp) = stamp {
        stamp.tid.store(tid.into(), Relaxed);
        stamp.since.store(now, Release);
    }
    let n = if stamp.is_some() { u64::from(n) } else { 0 };
    of.stamp.store(n << 32 | n, Relaxed);
    of.stamped.store(now, Relaxed);
}

/// A thread begins, perhaps in the area of one that has ended.
pub fn begins(t: Current) {
    if let Some(area) = area(t) {
        area.stamped.store(0, Relaxed);
        renew(area, t.tid() as u32);
    }
}

// ---- records -------------------------------------------------------------------------------------

/// The record of a byte; `None`: its memory has not been moved, or lies outside of our place.
pub fn of(addr: u64) -> Option<LastWriter> {
    let at = record_at(addr)?;
    // SAFETY: within the tables.
    Some(LastWriter(unsafe {
        (*(at as *const AtomicU32)).load(Relaxed)
    }))
}

/// Address of a byte's record.
fn record_at(addr: u64) -> Option<u64> {
    let alias = g().alias_of(addr)?.0;
    let origin = origin().filter(|_| place::memory().contains(&alias))?;
    Some(origin.wrapping_add(alias.wrapping_mul(RECORD)))
}

/// The thread's access has written `[start, start + len)`. `gprs`: the registers that it has left.
pub fn written(t: Current, gprs: &Gprs, c: &Cause, start: u64, len: u64) {
    let by = Site {
        call: c.syscall.map(|call| call.nr),
        ..instruction(c.pc)
    };
    wrote(t, own_call(t, gprs, by).unwrap_or(by), start, len);
}

/// The program's own call that has led to a site in a runtime library.
fn own_call(t: Current, gprs: &Gprs, by: Site) -> Option<Site> {
    if !unwind::is_runtime(by.pc) {
        return None;
    }
    let mut frames = [0; MAX_FRAMES];
    let n = unwind::to_own_call(t, gprs, &mut frames);
    let (first, last) = (frames[0], *frames.get(n.checked_sub(1)?)?);
    let books = unwind::is_of_allocator(by.pc, frames.get(..n)?);
    let call_to = |back| Site {
        pc: back,
        called: true,
        books,
        call: by.call,
    };
    if by.call.is_none() && memory::get(gprs.rsp) == Some(first) {
        // (One from within the library is not followed further there.)
        know_caller(first, site(call_to(first)));
    }
    Some(call_to(last))
}

/// From now on trampolines find the site by this return address.
fn know_caller(back: u64, site: u32) {
    let Some(tables) = tables() else { return };
    let at = tables + CALLERS_OFFSET + (back & (CALLERS as u64 - 1)) * 16;
    // SAFETY: within the tables: two words.
    let [key, record] = unsafe { &*(at as *const [AtomicU64; 2]) };
    // (A thread that finds the old key beside the new record would name the wrong one.)
    key.store(0, SeqCst);
    record.store(pair(site, 0), SeqCst);
    key.store(back, SeqCst);
}

/// An instruction has written `[start, start + len)`.
pub fn stored(t: Current, (gprs, pc): (&Gprs, u64), start: u64, len: u64) {
    let by = instruction(pc);
    wrote(t, own_call(t, gprs, by).unwrap_or(by), start, len);
}

/// A site has written `[start, start + len)`.
fn wrote(t: Current, by: Site, start: u64, len: u64) {
    let Some(area) = area(t) else { return };
    renew(area, t.tid() as u32);
    let stamp = area.stamp.load(Relaxed) as u32;
    set(LastWriter::new(site(by), stamp), start, len);
}

/// Of bytes with these aliases nothing is known any more.
pub fn emptied(alias: u64, len: u64) {
    let memory = place::memory();
    let Some(origin) = origin().filter(|_| memory.contains(&alias)) else {
        return;
    };
    let len = len.min(memory.end - alias);
    // (Pages of the alias: their records are whole pages, too.)
    place::zero(origin.wrapping_add(alias * RECORD), len * RECORD);
}

fn set(writer: LastWriter, start: u64, len: u64) {
    let end = start.saturating_add(len);
    let mut at = start;
    while at < end {
        let next = TargetAddr(at).page().0.saturating_add(PAGE_SIZE).min(end);
        if let Some(first) = record_at(at) {
            for n in 0..next - at {
                // SAFETY: within the tables: the records of one page.
                unsafe { (*((first + n * RECORD) as *const AtomicU32)).store(writer.0, Relaxed) };
            }
        }
        at = next;
    }
}
