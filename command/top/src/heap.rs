//! Errors and blocks of a checked heap. Errors are grouped by place as they are found. Blocks are grouped by their
//! allocating place, on request.

use super::view::Details;
use serde_json::Value;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use ulpf_heap::blocks::{Blocks, heard};
use ulpf_heap::error::Error;
use ulpf_heap::kind::word;
use ulpf_lib::ring::findings::{Findings, Wrong};
use ulpf_session::hit::place::Place;
use ulpf_session::words::count;
use ulpf_symbols::Program;

/// First key of rows for places with blocks, which are numbered from here in order.
const BLOCKS: u64 = 1 << 32;

/// Limit of errors that are resolved to names in one update, so that keys are handled promptly.
const MOST_NEW: usize = 8;

/// The state of a heap at the last update.
#[derive(Clone, Debug, Default)]
pub struct Heap {
    pub sums: Sums,
    pub errors: Vec<Found>,
    pub blocks: Vec<Blocks>,
}

/// Counters. In bytes: `bytes` in blocks now, `most` their maximum, `kept` in freed blocks (quarantine).
#[derive(Clone, Copy, Debug, Default)]
pub struct Sums {
    pub errors: u64,
    pub unreported: u64,
    pub blocks: u64,
    pub bytes: u64,
    pub most: u64,
    pub kept: u64,
}

/// An error at one place.
#[derive(Clone, Debug, Default)]
pub struct Found {
    pub kind: &'static str,
    pub what: String,
    pub count: u64,
    pub thread: u32,
    /// The place and its callers; the callers that freed and allocated the block.
    pub here: Vec<String>,
    pub freed_by: Vec<String>,
    pub allocated_by: Vec<String>,
}

fn callers<'a>(places: impl IntoIterator<Item = &'a std::rc::Rc<Place>>) -> Vec<String> {
    places.into_iter().map(|p| p.caller.clone()).collect()
}

impl Found {
    fn of(wrong: Wrong, error: &Error) -> Found {
        let own = [&error.place].into_iter().filter(|_| error.is_at_place());
        Found {
            kind: word(wrong),
            what: error.what(),
            count: error.count,
            thread: error.thread(),
            here: callers(own.chain(&error.callers)),
            freed_by: callers(&error.freed_by),
            allocated_by: callers(&error.allocated_by),
        }
    }
}

impl Heap {
    /// Updates the heap. (The program may have written any value there.)
    pub fn look(&mut self, findings: &Findings, program: &Program) {
        let freed = findings.freed();
        self.sums = Sums {
            errors: findings.errors.load(Relaxed),
            unreported: findings.unreported.load(Relaxed),
            blocks: findings.allocated().saturating_sub(freed),
            bytes: findings.bytes(),
            most: findings.most.load(Relaxed),
            kept: findings.kept.load(Relaxed),
        };
        let mut new = 0;
        for (at, report) in findings.reports.iter().enumerate() {
            if report.published.load(Acquire) != 1 {
                break;
            }
            match self.errors.get_mut(at) {
                Some(known) => known.count = report.count.load(Relaxed),
                None if new == MOST_NEW => break,
                None => {
                    new += 1;
                    let wrong = Wrong::of(report.wrong.load(Relaxed));
                    let found = wrong.map(|w| Found::of(w, &Error::of(w, report, program)));
                    self.errors.push(found.unwrap_or_default());
                }
            }
        }
    }

    /// Takes the owner's list of blocks.
    pub fn hear(&mut self, value: &Value) {
        self.blocks = heard(value);
        self.blocks.sort_by_key(|b| std::cmp::Reverse(b.bytes));
    }

    /// Keys of all rows, errors first.
    pub fn keys(&self) -> impl Iterator<Item = u64> + '_ {
        let is_shown = |f: &&Found| !f.kind.is_empty();
        let errors = self.errors.iter().enumerate();
        let errors = errors
            .filter(move |(_, f)| is_shown(f))
            .map(|(n, _)| n as u64);
        errors.chain((0..self.blocks.len() as u64).map(|n| BLOCKS + n))
    }

    pub fn error(&self, key: u64) -> Option<&Found> {
        self.errors.get(usize::try_from(key).ok()?)
    }

    pub fn blocks_of(&self, key: u64) -> Option<&Blocks> {
        let at = key.checked_sub(BLOCKS)?;
        self.blocks.get(usize::try_from(at).ok()?)
    }

    /// The details of a row.
    pub fn details(&self, key: u64) -> Option<Details> {
        if let Some(blocks) = self.blocks_of(key) {
            return Some(Details {
                title: format!("blocks, {}", blocks.how),
                facts: vec![
                    ("blocks", count(blocks.count, "block")),
                    ("bytes", count(blocks.bytes, "byte")),
                ],
                stack: blocks.allocated_by.clone(),
                ..Details::default()
            });
        }
        let found = self.error(key)?;
        let mut stack = found.here.clone();
        for (title, callers) in [
            ("freed by", &found.freed_by),
            ("allocated by", &found.allocated_by),
        ] {
            if !callers.is_empty() {
                stack.push(format!("{title}:"));
                stack.extend(callers.iter().cloned());
            }
        }
        let (what, place) = found.what.split_once(", ").unwrap_or((&found.what, ""));
        let mut facts = vec![("what", what.to_string()), ("where", place.to_string())];
        facts.retain(|(_, text)| !text.is_empty());
        facts.push(("times", found.count.to_string()));
        facts.push(("thread", found.thread.to_string()));
        Some(Details {
            title: found.kind.into(),
            facts,
            stack,
            ..Details::default()
        })
    }
}
