//! Watches whose memory is unmapped, and mapped again: they stay, and the user gets a message.

use alloc::collections::BTreeMap;
use alloc::string::String;
use core::fmt::Write;
use core::sync::atomic::Ordering::*;

use linux_raw_sys::general as k;
use ulpf_lib::sys;
use ulpf_lib::{PAGE_SIZE, TargetAddr, WatchId, WatchRange, syscalls};

use super::{Control, text};
use ulpf_stub_handlers::global::g;
use ulpf_stub_handlers::runtime::debug_registers;

/// Number of watches that one message names; the rest is counted.
const NAMED: usize = 8;

#[derive(Default)]
pub struct Unmapped {
    gone: BTreeMap<u32, WatchRange>,
    /// The system call that changes the program's mappings now.
    pub call: Option<u64>,
}

impl Unmapped {
    /// Notes a new watch whose memory is not mapped yet, so that it is not reported as lost.
    pub fn awaits(&mut self, id: WatchId, range: WatchRange) {
        mark([(&id.0, &range)].into_iter(), 1);
        self.gone.insert(id.0, range);
    }
}

impl Control {
    /// After guards were applied: finds watches that have lost their memory, or have it again.
    pub fn note_unmapped(&mut self) {
        let mut gone = BTreeMap::new();
        for (start, end) in g().guards().unmapped() {
            self.staged.list().for_each_overlap(
                TargetAddr(start),
                end - start,
                &mut |id, range, _| {
                    if g().attributes(id).group.is_none() {
                        gone.insert(id.0, range);
                    }
                },
            );
        }
        // A debug register matches whatever is there, and nothing where nothing is.
        let registers = self.placement.held();
        gone.extend(
            registers
                .filter(|(_, range)| !mapped(range.start))
                .map(|(id, range)| (id.0, range)),
        );
        let call = self.unmapped.call.take();
        let was = core::mem::replace(&mut self.unmapped.gone, gone);
        let now = &self.unmapped.gone;
        let mut text = String::new();
        let lost = now.iter().filter(|(id, _)| !was.contains_key(id));
        mark(lost.clone(), 1);
        describe(
            &mut text,
            lost,
            "its memory is gone",
            call,
            "it waits for it to return",
        );
        // A watch that was deleted meanwhile is not reported.
        let list = self.staged.list();
        let back = was.iter().filter(|(id, range)| {
            !now.contains_key(id) && list.any_overlap(range.start, range.len)
        });
        mark(back.clone(), 0);
        for (id, _) in back.clone() {
            debug_registers::look_at(WatchId(*id), text::read);
        }
        describe(
            &mut text,
            back,
            "its memory is back",
            call,
            "it is armed again",
        );
        if !text.is_empty() {
            self.notices.push(text);
        }
    }
}

/// Returns whether the program has any memory there.
fn mapped(addr: TargetAddr) -> bool {
    let mut there = [0u8];
    // SAFETY: asks about one page.
    unsafe {
        sys!(
            k::__NR_mincore,
            addr.page().0,
            PAGE_SIZE,
            there.as_mut_ptr()
        )
    }
    .is_ok()
}

fn mark<'a>(watches: impl Iterator<Item = (&'a u32, &'a WatchRange)>, gone: u64) {
    for (id, _) in watches {
        if let Some(n) = g().counters(WatchId(*id)) {
            n.gone.store(gone, Relaxed);
        }
    }
}

fn describe<'a>(
    out: &mut String,
    watches: impl Iterator<Item = (&'a u32, &'a WatchRange)> + Clone,
    what: &str,
    call: Option<u64>,
    and: &str,
) {
    for (_, range) in watches.clone().take(NAMED) {
        let _ = write!(
            out,
            "ulpf: the watch on {} bytes at {}: {what}",
            range.len, range.start
        );
        if let Some(name) = call.and_then(syscalls::name) {
            let _ = write!(out, " ({name})");
        }
        let _ = writeln!(out, "; {and}");
    }
    let more = watches.count().saturating_sub(NAMED);
    if more > 0 {
        let _ = writeln!(out, "ulpf: so it is with {more} other watches");
    }
}
