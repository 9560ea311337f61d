//! Sums over all findings.

use std::fmt::Write as _;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use ulpf_lib::ring::findings::{Findings, Wrong};
use ulpf_session::words::count;

pub const NO_ALLOCATOR: &str = "the program has no function called malloc, or no symbols any more";

/// Blocks that remain at the end, and their bytes.
#[derive(Default)]
pub struct Lost {
    pub lost: (u64, u64),
    pub with: (u64, u64),
    pub perhaps: (u64, u64),
    pub reachable: (u64, u64),
    pub suppressed: (u64, u64),
    /// Of all but `suppressed`: the blocks for which no place of allocation is known.
    pub unreported: (u64, u64),
}

#[derive(Default)]
pub struct Sums {
    /// Places of errors that are not leaks.
    pub places: u64,
    /// There was an error, or blocks are lost.
    pub failed: bool,
    pub lost: Lost,
}

/// Circumstances of the end, for [`Sums::text`].
#[derive(Clone, Copy, Default)]
pub struct Ended {
    /// Suppressed errors that are not leaks.
    pub suppressed: u64,
    /// The program was killed at its first error.
    pub killed: bool,
    /// The program runs on without us.
    pub goes_on: bool,
    /// Remaining blocks are searched for.
    pub leaks: bool,
    /// Blocks that could still be freed are reported by place.
    pub reachable: bool,
    /// The user could have asked for that.
    pub command_line: bool,
}

impl Sums {
    /// Counts remaining blocks and their bytes.
    pub fn left(&mut self, wrong: Wrong, hidden: bool, (blocks, bytes): (u64, u64)) {
        let all = match wrong {
            _ if hidden => &mut self.lost.suppressed,
            Wrong::Lost => &mut self.lost.lost,
            Wrong::LostWith => &mut self.lost.with,
            Wrong::PerhapsLost => &mut self.lost.perhaps,
            _ => &mut self.lost.reachable,
        };
        all.0 = all.0.saturating_add(blocks);
        all.1 = all.1.saturating_add(bytes);
    }

    /// Counts a reported finding.
    pub fn count(&mut self, wrong: Wrong) {
        self.places += u64::from(!wrong.is_leak());
        self.failed |= matches!(wrong, Wrong::Lost) || !wrong.is_leak();
    }

    /// Adds the remaining blocks of the places for which there was no room in the reports.
    pub fn add_unreported(&mut self, f: &Findings) {
        let l = &mut self.lost;
        let all = [&mut l.lost, &mut l.with, &mut l.perhaps, &mut l.reachable];
        for (all, [blocks, bytes]) in all.into_iter().zip(&f.left) {
            let more = (blocks.load(Relaxed), bytes.load(Relaxed));
            let add =
                |a: &mut (u64, u64)| *a = (a.0.saturating_add(more.0), a.1.saturating_add(more.1));
            add(all);
            add(&mut l.unreported);
        }
        self.failed |= l.lost.0 > 0;
    }

    /// Text for people.
    pub fn text(&self, f: &Findings, how: Ended) -> String {
        let get = |n: &AtomicU64| n.load(Relaxed);
        let mut out = String::new();
        let _ = writeln!(
            out,
            "ulpf: {} at {}; {} allocated, {} freed, {} bytes at most",
            count(get(&f.errors).saturating_sub(how.suppressed), "error"),
            count(self.places, "place"),
            count(f.allocated(), "block"),
            f.freed(),
            get(&f.most),
        );
        let hidden = (how.suppressed, self.lost.suppressed);
        if hidden != (0, (0, 0)) {
            let _ = writeln!(
                out,
                "ulpf: suppressed: {}, {} ({} bytes) that are left",
                count(hidden.0, "error"),
                count(hidden.1.0, "block"),
                hidden.1.1
            );
        }
        if how.killed {
            let _ = writeln!(
                out,
                "ulpf: the program was ended at its first error (--exit-on-first-error)"
            );
        } else if f.searched.load(Relaxed) != 0 {
            self.lost.write(&mut out, how);
        } else if how.goes_on {
            let _ = writeln!(out, "ulpf: the program goes on, unchecked");
        } else if how.leaks {
            let _ = writeln!(
                out,
                "ulpf: the program did not come to its end by itself, so nobody has looked for lost blocks"
            );
        }
        if get(&f.unreported) > 0 {
            let _ = writeln!(
                out,
                "ulpf: {} more that no room was left for",
                count(get(&f.unreported), "error")
            );
        }
        if get(&f.functions) == 0 && get(&f.unreplaced) == 0 {
            let _ = writeln!(
                out,
                "ulpf: no allocator was found in the program, so nothing was checked: {NO_ALLOCATOR}"
            );
        }
        out
    }
}

impl Lost {
    /// Text for people, one line for each kind that occurs.
    pub fn write(&self, out: &mut String, how: Ended) {
        for (what, (blocks, bytes)) in [
            ("lost", self.lost),
            ("lost with these", self.with),
            ("perhaps lost", self.perhaps),
            ("still reachable", self.reachable),
        ] {
            if blocks > 0 {
                let _ = writeln!(
                    out,
                    "ulpf: {what}: {} ({bytes} bytes)",
                    count(blocks, "block")
                );
            }
        }
        if self.unreported.0 > 0 {
            let _ = writeln!(
                out,
                "ulpf: (of these, {} ({} bytes) of more places than there is room for)",
                count(self.unreported.0, "block"),
                self.unreported.1
            );
        }
        if self.reachable.0 > 0 && !how.reachable && how.command_line {
            let _ = writeln!(
                out,
                "ulpf: (--show-reachable says where those were allocated)"
            );
        }
    }
}
