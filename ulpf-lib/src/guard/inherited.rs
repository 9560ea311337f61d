//! Flags of the program's memory that /proc/self/maps does not show: what a forked child gets of it, and whether it is
//! locked. They come from one read of smaps and the program's calls since ([`super::flags`]).

use linux_raw_sys::general as k;

use super::flags::{self, Change, Still};
use super::maps::{Snapshot, Vma};
use super::os::InChild;
use super::runs::Runs;
use crate::place;

#[cfg(test)]
#[allow(unsafe_code)]
mod tests;

/// Flags of a mapping that /proc/self/maps does not show.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Unshown {
    pub in_child: InChild,
    /// mlock(2)
    pub locked: bool,
}

impl Unshown {
    fn is_plain(self) -> bool {
        self == Unshown::default()
    }
}

/// Ranges with such flags, moved memory included.
pub struct Inherited(Runs<Unshown>);

impl Inherited {
    pub const fn new() -> Inherited {
        Inherited(Runs::new())
    }

    /// Completes a snapshot with the flags that /proc/self/maps does not show. `still`: no call was in progress before
    /// maps was read. `moved`: ranges of moved memory, which the memory file replaces, with their flags.
    pub fn complete(
        &mut self,
        snapshot: &mut Snapshot,
        still: Option<Still>,
        file: File,
        moved: impl Iterator<Item = (u64, u64, Unshown)>,
    ) {
        if !flags::any() {
            return;
        }
        let known = still.filter(|_| !flags::locks());
        let followed = known.is_some_and(|still| self.follow() && still.lasts());
        if !followed || !self.put_into(snapshot, file) {
            self.look(snapshot, known, file, moved);
        }
    }

    /// Reads smaps.
    fn look(
        &mut self,
        snapshot: &mut Snapshot,
        still: Option<Still>,
        file: File,
        moved: impl Iterator<Item = (u64, u64, Unshown)>,
    ) {
        self.0.clear();
        flags::forget();
        if still.is_some() {
            flags::begin_to_know();
        }
        let known = snapshot.resolve();
        for vma in &snapshot.vmas {
            if vma.keyed {
                flags::lost(); // no call reports these
            }
            let unshown = Unshown {
                in_child: vma.in_child,
                locked: vma.locked,
            };
            if !unshown.is_plain() && !is_of(vma, file) && !place::has(vma.start) {
                self.0.insert(vma.start, vma.end, unshown);
            }
        }
        // To the kernel, moved memory is a file, which all children get.
        for (start, end, unshown) in moved.filter(|m| !m.2.is_plain()) {
            self.0.insert(start, end, unshown);
        }
        if self.0.iter().next().is_some() {
            flags::found();
        }
        if !known {
            flags::lost();
        } else if !still.is_some_and(Still::lasts) {
            flags::follow(); // a call may have changed it since
        }
    }

    /// Applies the changes of the calls since the last look. Returns `false` if they are not known.
    fn follow(&mut self) -> bool {
        let Some(mut changes) = flags::changes() else {
            return false;
        };
        let done = changes.all(|change| self.change(change));
        if !done {
            flags::lost();
        }
        done
    }

    fn change(&mut self, change: Change) -> bool {
        match change {
            Change::None => {}
            Change::Unknown => return false,
            Change::Fresh(start, end) => self.0.remove(start, end),
            Change::Moved(from, to) => {
                if self.0.meets(from.0, from.1) {
                    return false; // it may have been a part, a copy, or become longer
                }
                self.0.remove(to.0, to.1);
            }
            Change::Advice(start, end, advice) => self.set(start, end, |unshown| {
                unshown.in_child = advised(unshown.in_child, advice);
            }),
            Change::Locked(start, end, locked) => {
                self.set(start, end, |unshown| unshown.locked = locked);
            }
        }
        true
    }

    fn set(&mut self, start: u64, end: u64, change: impl Fn(&mut Unshown)) {
        let mut at = start;
        while at < end {
            let (stop, mut unshown) = match self.0.within(at, end).next() {
                Some((s, e, v)) if s <= at => (e, v),
                Some((s, ..)) => (s, Unshown::default()),
                None => (end, Unshown::default()),
            };
            change(&mut unshown);
            match unshown.is_plain() {
                true => self.0.remove(at, stop),
                false => self.0.insert(at, stop, unshown),
            }
            at = stop;
        }
    }

    /// Returns `false` if a mapping has a flag in part, so that the table cannot be right (a mapping that grows down, for
    /// example).
    fn put_into(&self, snapshot: &mut Snapshot, file: File) -> bool {
        for vma in snapshot.vmas.iter_mut().filter(|v| !is_of(v, file)) {
            let unshown = match self.0.within(vma.start, vma.end).next() {
                None => Unshown::default(),
                Some((s, e, v)) if (s, e) == (vma.start, vma.end) => v,
                Some(_) => return false,
            };
            (vma.in_child, vma.locked) = (unshown.in_child, unshown.locked);
        }
        true
    }
}

/// Device and inode of the file that holds moved memory.
type File = (u64, u64);

fn is_of(vma: &Vma, file: File) -> bool {
    vma.inode != 0 && (vma.dev, vma.inode) == file
}

fn advised(before: InChild, advice: u32) -> InChild {
    let (nothing, wiped) = match before {
        InChild::Copy => (false, false),
        InChild::Zeros => (false, true),
        InChild::Nothing { wiped } => (true, wiped),
    };
    let (nothing, wiped) = match advice {
        k::MADV_DONTFORK => (true, wiped),
        k::MADV_DOFORK => (false, wiped),
        k::MADV_WIPEONFORK => (nothing, true),
        k::MADV_KEEPONFORK => (nothing, false),
        _ => (nothing, wiped),
    };
    match (nothing, wiped) {
        (true, wiped) => InChild::Nothing { wiped },
        (false, true) => InChild::Zeros,
        (false, false) => InChild::Copy,
    }
}
