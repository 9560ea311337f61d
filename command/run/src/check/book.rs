//! Findings of one process.

use crate::options::Check;
use serde::Serialize;
use std::sync::atomic::Ordering::Relaxed;
use ulpf_heap::sums::{Ended, Sums};
use ulpf_lib::ring::findings::{Findings, Wrong};

/// Findings of one process.
#[derive(Default)]
pub struct Book {
    /// For each report that has been read: its number among those of all processes, and the suppression that hides it.
    pub reports: Vec<(usize, Option<usize>)>,
    /// Some of them have been reported.
    pub reported: bool,
    pub sums: Sums,
    /// It has been reported that the allocator cannot be replaced.
    pub unreplaced: bool,
}

impl Book {
    /// Number of hidden errors that are not leaks.
    fn suppressed(&self, f: &Findings) -> u64 {
        let all = f.reports.iter().zip(&self.reports);
        let hidden = all.filter(|(r, (_, by))| {
            by.is_some() && Wrong::of(r.wrong.load(Relaxed)).is_some_and(|w| !w.is_leak())
        });
        hidden.fold(0, |n, (r, _)| n.saturating_add(r.count.load(Relaxed)))
    }

    /// Text for people. `who`: prefix that names the process, if there are several. `killed`: at its first error.
    /// `goes_on`: it has not ended.
    pub fn summary(
        &self,
        f: &Findings,
        check: &Check,
        who: &str,
        killed: bool,
        goes_on: bool,
    ) -> String {
        let how = Ended {
            suppressed: self.suppressed(f),
            killed,
            goes_on,
            leaks: check.how.leaks,
            reachable: check.reachable,
            command_line: true,
        };
        let text = self.sums.text(f, how);
        let rest = text.strip_prefix("ulpf: ").unwrap_or(&text);
        format!("ulpf: {who}{rest}")
    }
}

/// Totals of a process, for programs.
#[derive(Serialize)]
pub struct SumLine {
    r#type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<i32>,
    errors: u64,
    unreported: u64,
    suppressed: u64,
    allocated: u64,
    freed: u64,
    most: u64,
    searched: bool,
    lost: (u64, u64),
    indirectly_lost: (u64, u64),
    possibly_lost: (u64, u64),
    reachable: (u64, u64),
    suppressed_blocks: (u64, u64),
}

impl SumLine {
    /// `pid`: the process, if there are several.
    pub fn of(f: &Findings, book: &Book, pid: Option<i32>) -> SumLine {
        let get = |n: &std::sync::atomic::AtomicU64| n.load(Relaxed);
        SumLine {
            r#type: "heap",
            pid,
            errors: get(&f.errors).saturating_sub(book.suppressed(f)),
            unreported: get(&f.unreported),
            suppressed: book.suppressed(f),
            allocated: f.allocated(),
            freed: f.freed(),
            most: get(&f.most),
            searched: f.searched.load(Relaxed) != 0,
            lost: book.sums.lost.lost,
            indirectly_lost: book.sums.lost.with,
            possibly_lost: book.sums.lost.perhaps,
            reachable: book.sums.lost.reachable,
            suppressed_blocks: book.sums.lost.suppressed,
        }
    }
}
