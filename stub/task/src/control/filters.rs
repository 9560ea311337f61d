//! Filters of watches as the monitor commands describe them, and what becomes of them.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Write;
use core::sync::atomic::Ordering::*;

use ulpf_engine::agent::{self, variable};
use ulpf_lib::{TargetAddr, WatchId, WatchRange};

use super::Control;
use super::words::{self, bytecode, comparison, masked, number};
use crate::attributes::Attributes;
use crate::filter::{FAILED, Filter, Ranges};
use crate::g;

pub const HELP: &str = "\
FILTER, any number of these: changed, thread TID|main, skip N, count N, old|new OP N [mask M],
       from|outside RANGES, called from|outside RANGES, if x BYTECODE, unit BYTES
  OP: == != < <= > >= (unsigned); RANGES: 0x1000-0x2000,0x3000-0x3800 or none
  BYTECODE: a GDB agent expression in hex (ARCHITECTURE.md lists the variables of a hit)
";

/// The filter words of one command.
#[derive(Default)]
pub struct Words {
    filter: Filter,
    any: bool,
    /// Go on counting where the watch's filter was.
    keep: bool,
}

type Found = Result<bool, &'static str>;

impl Words {
    /// Takes a word and what belongs to it. `Ok(false)`: it says nothing about filters.
    pub fn take<'a>(&mut self, word: &str, w: &mut impl Iterator<Item = &'a str>) -> Found {
        let f = &mut self.filter;
        match word {
            "changed" => f.changed = true,
            "thread" => match w.next() {
                Some("main") => f.thread = g().pid.load(Relaxed) as u32,
                word => match number(word) {
                    Some(tid) if tid > 0 && tid <= i32::MAX as u64 => f.thread = tid as u32,
                    _ => return Err("thread takes a Linux thread id, or main"),
                },
            },
            "skip" => f.skip = number(w.next()).ok_or("skip takes a number")?,
            "count" => f.count = number(w.next()).ok_or("count takes a number")?,
            "unit" => match number(w.next()) {
                Some(n) if n <= 8 => f.unit = n,
                _ => return Err("unit takes a number from 0 to 8"),
            },
            "from" | "outside" => f.pc = Some(ranges(word, w.next())?),
            "called" => match w.next() {
                Some(word @ ("from" | "outside")) => f.caller = Some(ranges(word, w.next())?),
                _ => return Err("called is followed by from or outside"),
            },
            "old" => f.conditions.push(comparison(variable::OLD, w)?),
            "new" => f.conditions.push(comparison(variable::NEW, w)?),
            // A mask for the comparison before it.
            "mask" => {
                let mask = number(w.next()).ok_or("mask takes a number")?;
                let code = f.conditions.last_mut();
                masked(code.ok_or("mask follows old or new OP N")?, mask)?;
            }
            "if" => {
                let hex = w.next().filter(|word| *word == "x").and_then(|_| w.next());
                let code = hex.and_then(bytecode);
                f.conditions
                    .push(code.ok_or("if takes x and bytecode in hex")?);
            }
            "keep" => self.keep = true,
            _ => return Ok(false),
        }
        self.any = true;
        Ok(true)
    }

    /// `Ok(None)`: nothing was asked for.
    pub fn finish(mut self, range: Option<WatchRange>) -> Result<Option<Filter>, &'static str> {
        let f = &mut self.filter;
        for code in &f.conditions {
            let by_element = &mut f.by_element;
            let see =
                |v| *by_element |= matches!(v, variable::OLD | variable::NEW | variable::ADDR);
            if !agent::variables(code, see) {
                return Err("the bytecode has an opcode that is not supported, or is cut off");
            }
        }
        if f.unit == 0 {
            f.unit = range.map_or(0, |r| r.len).min(9) % 9;
        }
        Ok(self.any.then_some(self.filter))
    }
}

fn ranges(word: &str, text: Option<&str>) -> Result<Ranges, &'static str> {
    Ok(Ranges {
        inside: word == "from",
        list: words::ranges(text)?,
    })
}

/// Filters for watches that the debugger sets itself, by their bytes.
#[derive(Default)]
pub struct ByRange(Vec<(WatchRange, Arc<Filter>)>);

impl ByRange {
    pub fn find(&self, range: WatchRange) -> Option<Arc<Filter>> {
        let found = self.0.iter().find(|f| f.0 == range)?;
        Some(found.1.clone())
    }
}

impl Control {
    fn set_filter(&mut self, id: WatchId, filter: Option<Arc<Filter>>) {
        let a = Attributes {
            filter,
            ..g().attributes(id).clone()
        };
        self.set_attributes(id, a);
    }

    /// Changes the filter of a watch. `Ok(false)`: there is no such watch.
    pub fn filter_watch(&mut self, id: WatchId, words: Words) -> Result<bool, &'static str> {
        let range = self.staged.get(id).map(|w| w.0);
        let heap = self.heap.list().any(|w| w.0 == id);
        if !heap && range.is_none() {
            return Ok(false);
        }
        let keep = words.keep;
        let filter = words.finish(range)?.map(Arc::new);
        if let (Some(new), Some(old), true) = (&filter, &g().attributes(id).filter, keep) {
            new.goes_on(old);
        }
        match heap {
            true => self.filter_heap(id, filter),
            false => self.set_filter(id, filter),
        }
        Ok(true)
    }

    /// The same for all watches of exactly these bytes, also for those that the debugger sets later;
    /// which it is now.
    pub fn filter_range(
        &mut self,
        range: WatchRange,
        words: Words,
    ) -> Result<Vec<WatchId>, &'static str> {
        let filter = words.finish(Some(range))?.map(Arc::new);
        self.filters.0.retain(|f| f.0 != range);
        if let Some(f) = &filter {
            self.filters.0.push((range, f.clone()));
        }
        let ids = g().watches().attributes.iter().map(|(id, _)| id);
        let same = |id: &WatchId| self.staged.get(*id).is_some_and(|w| w.0 == range);
        let same: Vec<WatchId> = ids.filter(same).collect();
        for &id in &same {
            self.set_filter(id, filter.clone());
        }
        Ok(same)
    }

    /// Tells of conditions that could not be evaluated.
    pub fn tell_failures(&mut self) {
        if !FAILED.swap(false, SeqCst) {
            return;
        }
        let all = g().watches().attributes.iter();
        let failures: Vec<_> = all
            .filter_map(|(id, a)| {
                let (error, pc) = a.filter.as_ref()?.take_failure()?;
                Some((a.group.unwrap_or(id), error, pc))
            })
            .collect();
        for (id, error, pc) in failures {
            let mut text = String::new();
            let what = match self.staged.get(id) {
                Some((r, _)) => format!("{} ({} bytes)", r.start, r.len),
                None => "the heap".into(),
            };
            let _ = writeln!(
                text,
                "ulpf: the condition of watch {} on {what} cannot be evaluated for the access at {}: {error}; such \
                 hits count as if it held, and no more is said about them",
                id.0,
                TargetAddr(pc),
            );
            self.notices.push(text);
        }
    }
}
