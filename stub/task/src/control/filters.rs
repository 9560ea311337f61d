//! Filters of watches as the monitor commands describe them, and reports of their failures.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Write;
use core::sync::atomic::Ordering::*;

use ulpf_lib::filter::{Filter, Thread};
use ulpf_lib::{TargetAddr, WatchId, WatchRange};

use super::Control;
use ulpf_stub_handlers::global::g;
use ulpf_stub_tables::attributes::{Attributes, Part};
use ulpf_stub_tables::filter::{CountedFilter, FAILED};

pub const HELP: &str = "\
FILTER, any number of these: changed, thread TID|main, skip N, count N, old|new OP N [mask M],
       from|outside RANGES, called from|outside RANGES, if x BYTECODE, unit BYTES
  OP: == != < <= > >= (unsigned); RANGES: 0x1000-0x2000,0x3000-0x3800 or none
  BYTECODE: a GDB agent expression in hex (stub/README.md lists the variables of a hit)
";

/// The filter of a command, for a watch of `len` bytes (`None`: the heap); `Ok(None)`: every hit matters.
pub fn counted(
    mut filter: Filter,
    len: Option<u64>,
) -> Result<Option<Arc<CountedFilter>>, &'static str> {
    match filter.thread {
        // A vfork child's threads have the number of another process.
        Some(Thread::Main) => {
            let pid = g().pid.load(Relaxed) as u64;
            filter.thread = Some(Thread::Id(pid));
        }
        Some(Thread::Id(id)) if id > i32::MAX as u64 => {
            return Err("thread takes a Linux thread id, or main");
        }
        _ => {}
    }
    let asks = filter != Filter::default();
    Ok(asks.then(|| Arc::new(CountedFilter::new(filter, len))))
}

/// Filters for watches that the debugger sets itself, by their bytes.
#[derive(Default)]
pub struct ByRange(Vec<(WatchRange, Arc<CountedFilter>)>);

impl ByRange {
    pub fn find(&self, range: WatchRange) -> Option<Arc<CountedFilter>> {
        let found = self.0.iter().find(|f| f.0 == range)?;
        Some(found.1.clone())
    }
}

impl Control {
    pub(super) fn set_filter(&mut self, id: WatchId, filter: Option<Arc<CountedFilter>>) {
        let a = Attributes {
            filter,
            ..g().attributes(id).clone()
        };
        self.set_attributes(id, a);
    }

    /// Changes the filter of a watch. With `keep`, the new filter continues the old one's count. `Ok(false)`: no such
    /// watch.
    pub fn filter_watch(
        &mut self,
        id: WatchId,
        filter: Filter,
        keep: bool,
    ) -> Result<bool, &'static str> {
        let range = self.staged.get(id).map(|w| w.0);
        let heap = self.heap.list().any(|w| w.0 == id);
        let path = self.paths.len_of(id);
        if !heap && path.is_none() && range.is_none() {
            return Ok(false);
        }
        let filter = counted(filter, path.or(range.map(|r| r.len)))?;
        if let (Some(new), Some(old), true) = (&filter, &g().attributes(id).filter, keep) {
            new.goes_on(old);
        }
        match heap {
            true => self.filter_heap(id, filter),
            false if path.is_some() => self.filter_path(id, filter),
            false => self.set_filter(id, filter),
        }
        Ok(true)
    }

    /// Changes the filter of all watches of exactly these bytes, also of those that the debugger sets later. Returns
    /// those that exist now.
    pub fn filter_range(
        &mut self,
        range: WatchRange,
        filter: Filter,
    ) -> Result<Vec<WatchId>, &'static str> {
        let filter = counted(filter, Some(range.len))?;
        self.filters.0.retain(|f| f.0 != range);
        if let Some(f) = &filter {
            self.filters.0.push((range, f.clone()));
        }
        let ids = g().watches().attributes.iter().map(|(id, _)| id);
        let same = |id: &WatchId| {
            let whole = g().attributes(*id).part == Part::Whole;
            whole && self.staged.get(*id).is_some_and(|w| w.0 == range)
        };
        let mut same: Vec<WatchId> = ids.filter(same).collect();
        for &id in &same {
            let kind = self.staged.get(id).map(|w| w.1);
            let condition = || self.conditions.find(range, kind?);
            let filter = filter.clone().or_else(condition);
            self.set_filter(id, filter);
        }
        for id in self.paths.at(range) {
            self.filter_path(id, filter.clone());
            same.push(id);
        }
        Ok(same)
    }

    /// Reports conditions that could not be evaluated.
    pub fn tell_failures(&mut self) {
        if !FAILED.swap(false, SeqCst) {
            return;
        }
        let all = g().watches().attributes.iter();
        let failures: Vec<_> = all
            .filter_map(|(id, a)| {
                let filter = a.filter.as_ref()?;
                // GDB evaluates its own condition again, and reports the error itself.
                let (error, pc) = filter.take_failure().filter(|_| !filter.is_debuggers())?;
                Some((a.group.unwrap_or(id), error, pc))
            })
            .collect();
        for (id, error, pc) in failures {
            let mut text = String::new();
            let what = match self.staged.get(id) {
                Some((r, _)) => format!("{} ({} bytes)", r.start, r.len),
                None if self.paths.has(id) => "what a pointer leads to".into(),
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
