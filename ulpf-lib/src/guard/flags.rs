//! Flags of mappings that /proc/self/maps does not show: whether any exist, and which are known without /proc/self/smaps,
//! for which the kernel walks all page tables.
//!
//! smaps is read once to learn what a forked child gets of memory and what is locked. From then on the program's own
//! calls report changes ([`through`]), if the owner of the calls has promised to report all of them ([`calls_are_reported`]).
//! The table is [`super::inherited`]; this module is the log that the program's threads write, in the order of their
//! calls. The order is unknown if two calls were made at the same time or one has failed halfway; smaps is then read
//! again.
//!
//! ```text
//! a thread   BEGUN+1 ─▶ the call ─▶ EVENTS ─▶ ENDED+1
//! the task   BEGUN == ENDED, nothing unknown? ─▶ EVENTS into the table ─▶ BEGUN the same?
//! ```

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use linux_raw_sys::general as k;

static FLAGS: AtomicBool = AtomicBool::new(true);

/// To be called before memory may get flags that /proc/self/maps does not show: a protection key, or flags that
/// [`through`] does not report. (Flags from before the stub came are found separately.)
pub fn follow() {
    FLAGS.store(true, Ordering::SeqCst);
    lost();
}

/// As [`follow`], for changes that [`Change::by`] reports: a lock, or different inheritance in forked children. Inside
/// [`through`].
pub fn follow_reported() {
    if !FLAGS.swap(true, Ordering::SeqCst) {
        lost();
    }
}

static LOCKS: AtomicBool = AtomicBool::new(false);

/// All memory to come is locked (mlockall(MCL_FUTURE)), or no longer.
pub fn locks_follow(yes: bool) {
    LOCKS.store(yes, Ordering::SeqCst);
}

/// Whether such memory may exist.
pub(super) fn any() -> bool {
    FLAGS.load(Ordering::SeqCst) || LOCKS.load(Ordering::SeqCst)
}

/// Whether all memory to come is locked.
pub(super) fn locks() -> bool {
    LOCKS.load(Ordering::SeqCst)
}

/// Assumes none until the next search; [`found`] records a finding.
pub(super) fn forget() {
    FLAGS.store(false, Ordering::SeqCst);
}

pub(super) fn found() {
    FLAGS.store(true, Ordering::SeqCst);
}

static CALLS_REPORTED: AtomicBool = AtomicBool::new(false);

/// From now on every call of the program that changes mappings goes through [`through`].
pub fn calls_are_reported() {
    CALLS_REPORTED.store(true, Ordering::SeqCst);
}

/// Set when smaps and the calls since no longer tell all flags.
static UNKNOWN: AtomicBool = AtomicBool::new(true);

/// Something has happened whose effect is unknown.
pub fn lost() {
    UNKNOWN.store(true, Ordering::SeqCst);
}

/// Effect of a call on the flags that /proc/self/maps does not show.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// Nothing.
    None,
    /// The memory in `start..end` is new, or unmapped: children get copies of it, and it is not locked.
    Fresh(u64, u64),
    /// madvise(2) has given this advice about `start..end`.
    Advice(u64, u64, u32),
    /// `start..end` has been locked (mlock(2)), or unlocked.
    Locked(u64, u64, bool),
    /// The memory of the first range is now in the second one, with its flags.
    Moved((u64, u64), (u64, u64)),
    /// The effect of the call is unknown.
    Unknown,
}

impl Change {
    /// The effect of a call with its result; `brk`: the program break before it.
    pub fn by(nr: u64, a: &[u64; 6], result: i64, brk: u64) -> Change {
        let end = |start: u64, len: u64| start.saturating_add(len).saturating_add(4095) & !4095;
        let failed = (-4095..0).contains(&result);
        match nr as u32 {
            k::__NR_mprotect => Change::None,
            k::__NR_pkey_mprotect if a[3] as i32 <= 0 => Change::None,
            k::__NR_madvise if !is_inheritance(a[2] as u32) => Change::None,
            k::__NR_mmap if failed && a[3] & u64::from(k::MAP_FIXED) == 0 => Change::None,
            _ if failed => Change::Unknown, // done in part, perhaps
            // Huge pages may be longer than what was asked for.
            k::__NR_mmap if a[3] & u64::from(k::MAP_HUGETLB) == 0 => {
                Change::Fresh(result as u64, end(result as u64, a[1]))
            }
            k::__NR_munmap => Change::Fresh(a[0], end(a[0], a[1])),
            k::__NR_brk => {
                let now = result as u64;
                Change::Fresh(end(brk.min(now), 0), end(brk.max(now), 0))
            }
            k::__NR_madvise => Change::Advice(a[0], end(a[0], a[1]), a[2] as u32),
            k::__NR_mlock | k::__NR_mlock2 | k::__NR_munlock => {
                let locked = nr as u32 != k::__NR_munlock;
                Change::Locked(a[0] & !4095, end(a[0], a[1]), locked)
            }
            k::__NR_mremap => {
                let old = (a[0], end(a[0], a[1].max(1)));
                Change::Moved(old, (result as u64, end(result as u64, a[2])))
            }
            _ => Change::Unknown,
        }
    }
}

/// Whether this advice is about inheritance by forked children.
pub fn is_inheritance(advice: u32) -> bool {
    matches!(
        advice,
        k::MADV_DONTFORK | k::MADV_DOFORK | k::MADV_WIPEONFORK | k::MADV_KEEPONFORK
    )
}

/// Calls that have begun, and calls that have been recorded. The two differ while a call is being made.
static BEGUN: AtomicU64 = AtomicU64::new(0);
static ENDED: AtomicU64 = AtomicU64::new(0);

/// Capacity of the log. After more calls between two looks, smaps is read.
const ROOM: usize = 512;
type Event = [AtomicU64; 5];
static EVENTS: [Event; ROOM] = [const { [const { AtomicU64::new(0) }; 5] }; ROOM];
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Makes a call that changes mappings, and notes what it has done.
pub fn through(make: impl FnOnce() -> i64, change: impl FnOnce(i64) -> Change) -> i64 {
    let before = BEGUN.fetch_add(1, Ordering::SeqCst);
    if ENDED.load(Ordering::SeqCst) != before {
        lost(); // only the kernel knows the order of the two
    }
    let result = make();
    note(change(result));
    ENDED.fetch_add(1, Ordering::SeqCst);
    result
}

fn note(change: Change) {
    if !FLAGS.load(Ordering::SeqCst) || UNKNOWN.load(Ordering::SeqCst) {
        return; // the next look reads smaps
    }
    let words = match change {
        Change::None => return,
        Change::Unknown => return lost(),
        Change::Fresh(start, end) => [0, start, end, 0, 0],
        Change::Advice(start, end, advice) => [1, start, end, advice.into(), 0],
        Change::Moved(from, to) => [2, from.0, from.1, to.0, to.1],
        Change::Locked(start, end, locked) => [3, start, end, locked.into(), 0],
    };
    match EVENTS.get(COUNT.fetch_add(1, Ordering::SeqCst)) {
        None => lost(),
        Some(event) => {
            for (to, word) in event.iter().zip(words) {
                to.store(word, Ordering::SeqCst);
            }
        }
    }
}

/// A moment at which no call is in progress.
#[derive(Clone, Copy)]
pub(super) struct Still(u64);

impl Still {
    pub(super) fn now() -> Option<Still> {
        let ended = ENDED.load(Ordering::SeqCst);
        (BEGUN.load(Ordering::SeqCst) == ended).then_some(Still(ended))
    }

    /// Whether no call has begun since.
    pub(super) fn lasts(self) -> bool {
        BEGUN.load(Ordering::SeqCst) == self.0
    }
}

/// Effects of the calls since the last look, or `None` if they are not known.
pub(super) fn changes() -> Option<impl Iterator<Item = Change>> {
    if UNKNOWN.load(Ordering::SeqCst) {
        return None;
    }
    let count = COUNT.swap(0, Ordering::SeqCst).min(ROOM);
    Some(EVENTS.iter().take(count).map(|event| {
        let [what, a, b, c, d] = [0, 1, 2, 3, 4].map(|n: usize| match event.get(n) {
            Some(word) => word.load(Ordering::SeqCst),
            None => 0,
        });
        match what {
            0 => Change::Fresh(a, b),
            1 => Change::Advice(a, b, c as u32),
            3 => Change::Locked(a, b, c != 0),
            _ => Change::Moved((a, b), (c, d)),
        }
    }))
}

/// To be called before smaps is read: from now on the log holds what has changed since.
pub(super) fn begin_to_know() {
    if CALLS_REPORTED.load(Ordering::SeqCst) {
        COUNT.store(0, Ordering::SeqCst);
        UNKNOWN.store(false, Ordering::SeqCst);
    }
}

/// Whether the next look needs no smaps.
#[cfg(test)]
pub(super) fn are_known() -> bool {
    FLAGS.load(Ordering::SeqCst) && !UNKNOWN.load(Ordering::SeqCst)
}
