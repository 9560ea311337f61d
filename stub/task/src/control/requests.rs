//! Requests of program threads: the other threads stop, the request is served, and the world goes on.

use core::sync::atomic::Ordering::*;

use ulpf_lib::TargetAddr;
use ulpf_lib::guard::maps::{Snapshot, Vma};
use ulpf_stub_handlers::global::g;
use ulpf_stub_handlers::runtime::debug_registers;
use ulpf_stub_handlers::runtime::events::{Change, Event, Request};
use ulpf_stub_handlers::runtime::mapped::Locks;
use ulpf_stub_handlers::runtime::park::Futex;
use ulpf_stub_handlers::runtime::thread::{State, Thread};

use super::parked::{self, Parked, asked, resume_again};
use super::placer::now;
use super::stops::behind;
use super::{Control, backend, breakpoints, follow, notices, unwind, watchdog, world};
use ulpf_stub_handlers::paths;
use ulpf_stub_tables::back_off;

impl Control {
    /// Serves the requests of program threads, up to the end of one that has run alone. Where threads make requests
    /// without end, the debugger is served and stops are reported between them. Returns true if there may be more.
    pub(super) fn serve(&mut self) -> bool {
        loop {
            if let Some((t, what)) = self.holder {
                if self.child_is_leaving(t) {
                    return false;
                }
                if matches!(t.state(), State::Dead | State::Free)
                    || g().threads.find(t.tid()).is_none()
                    || t.state() == State::Running && world::died(t)
                {
                    self.finish(None, what);
                    self.holder = None;
                    self.let_world_go();
                } else if asked(t) == Some(Request::End) {
                    if self.waits_for_exec() && !self.exec_settled() {
                        return false;
                    }
                    self.finish(Some(t), what);
                    self.holder = None;
                    self.tell_at_once();
                    self.let_world_go();
                    self.answer(t);
                    return true;
                } else if asked(t) == Some(Request::Retrace) {
                    // It goes on alone.
                    self.retrace();
                    self.answer(t);
                    return false;
                } else if asked(t) == Some(Request::OpenEnd) {
                    self.close_opened();
                    self.answer(t);
                    return false;
                } else if let Some(Request::CodeWritten { start, end }) = asked(t) {
                    // It writes to code while it runs alone.
                    self.edits
                        .accesses
                        .code_written(self.world.stopped(), start, end);
                    self.answer(t);
                    return false;
                } else if let Some(Request::OpenBegin { start, end }) = asked(t) {
                    // The world is stopped for it already; its `End` closes these, too.
                    self.open_pages(start, end, true);
                    self.opened_since.push((start, end));
                    self.answer(t);
                    return false;
                } else if let Some(other) = asked(t).filter(|_| what == Request::SectionBegin) {
                    // One of many instructions makes a request that needs no `End`.
                    self.begin(t, other);
                    self.answer(t);
                    return false;
                } else {
                    return false;
                }
            }
            if !self.running {
                return false;
            }
            // A held thread waits with its request: if it were served, the thread would run on.
            let asks = |t: &&Thread| t.state() == State::Requesting && !t.hold.load(SeqCst);
            let Some(t) = behind(self.served).find(asks) else {
                return false;
            };
            let Some(what) = asked(t) else {
                return false;
            };
            self.served = t.index.load(Relaxed);
            if what == Request::End {
                self.answer(t);
                continue;
            }
            let asked_at = now();
            if !self.world.stop(Some(t)) {
                return false;
            }
            let (stopped_at, threads) = (now(), self.world.signalled + 1);
            if self.begin(t, what) {
                self.holder = Some((t, what));
                self.holding = Some(watchdog::Watchdog::new());
                self.answer(t);
                return false;
            }
            self.tell_at_once();
            let done_at = now();
            self.let_world_go();
            self.answer(t);
            if let Some(h) = g().header().filter(|_| threads > 1) {
                // (Processors need not agree on the time.)
                let between = |from, to| h.nanos(to).saturating_sub(h.nanos(from));
                let took = between(asked_at, stopped_at) + between(done_at, now());
                back_off::stop_took(took, threads);
            }
        }
    }

    fn answer(&mut self, t: &Thread) {
        t.gate().let_go(&Futex);
        self.looks.answered();
    }

    /// Sends messages before a thread goes on: it may end the program, and then no client listens any more.
    pub(super) fn tell_at_once(&mut self) {
        if self.running {
            self.note_limits();
            for text in self.notices.take() {
                notices::tell(&text);
            }
        }
    }

    /// The world is stopped but for `t`. `true`: `t` goes on alone until its `End`.
    pub(super) fn begin(&mut self, t: &'static Thread, what: Request) -> bool {
        match what {
            Request::ExecBegin { path, len, dir } => {
                self.edits.accesses.keep();
                self.exec_begins(t, (path, len), dir);
                true
            }
            Request::ForkBegin => {
                self.world.stopped().guards().prepare_fork();
                true
            }
            Request::ReleaseBegin { start, end } => {
                self.release_memory(start, end);
                true
            }
            Request::ChangeInPlace { start, end, change } => {
                let changed = self.change_in_place(start, end, change);
                if let Some(t) = Parked::of(t) {
                    t.set_changed_in_place(changed);
                }
                if changed && change == Change::Unmap {
                    self.mappings_changed(Some(t), start, end);
                } else {
                    paths::changed();
                }
                self.retrace();
                false
            }
            Request::Segment { at } => {
                if let (Some(t), Some(segment)) = (Parked::of(t), segment(at)) {
                    t.set_segment(segment);
                }
                false
            }
            Request::OpenBegin { start, end } => {
                // The instruction to be stepped must be in place itself.
                if let Some(pc) = Parked::of(t).map(|t| t.pc()) {
                    self.edits
                        .accesses
                        .restore(self.world.stopped(), pc, pc + 1);
                }
                self.edits
                    .accesses
                    .code_written(self.world.stopped(), start, end);
                self.open_pages(start, end, true);
                true
            }
            Request::LocksBegin { start, end } => {
                self.open_pages(start, end, true);
                true
            }
            Request::StepOverBegin { addr } => {
                breakpoints::lift(self.world.stopped(), addr);
                true
            }
            Request::SectionBegin => true,
            Request::Confined { which, groups, len } => {
                // SAFETY: the thread keeps the list until its request is answered.
                let groups =
                    unsafe { core::slice::from_raw_parts(groups as *const u32, len as usize) };
                self.confine(t, which, groups);
                false
            }
            Request::Plain { at } => {
                self.edits
                    .accesses
                    .restore(self.world.stopped(), at, at + 1);
                false
            }
            Request::Register { at, len, signature } => {
                self.register_sequences(t, (at, len), signature);
                false
            }
            Request::CodeWritten { start, end } => {
                self.edits
                    .accesses
                    .code_written(self.world.stopped(), start, end);
                false
            }
            Request::CollectorBegins { back } => {
                self.edits
                    .accesses
                    .collector_begins(self.world.stopped(), back);
                false
            }
            Request::CollectorEnds { at } => {
                self.edits.accesses.collector_ends(self.world.stopped(), at);
                false
            }
            Request::Patch { insn } => {
                self.edits.calls.patch(self.world.stopped(), insn);
                false
            }
            Request::PatchAccess { pc, page } => {
                self.edits.accesses.serve(self.world.stopped(), pc, page);
                false
            }
            Request::Cool { start } => {
                self.edits.accesses.cool(self.world.stopped(), start);
                false
            }
            Request::SitesAnew => {
                self.edits.calls.remove_all(self.world.stopped());
                false
            }
            Request::NoUpcalls => {
                backend::no_upcalls(self.world.stopped());
                false
            }
            Request::NoPatches => {
                self.edits.accesses.disable(self.world.stopped());
                false
            }
            Request::Rearm => {
                self.unmapped.call = u64::try_from(t.orig_rax.load(Relaxed)).ok();
                self.follow_heap(t);
                paths::changed();
                self.retrace();
                self.apply_guards();
                breakpoints::plant_waiting(self.world.stopped());
                false
            }
            Request::Adopt => {
                if debug_registers::active() {
                    self.adopt(t);
                }
                self.follow_threads(None);
                false
            }
            Request::Moved => {
                self.follow_threads(None);
                false
            }
            Request::Leaves => {
                self.follow_threads(Some(t));
                false
            }
            Request::Retrace => {
                self.retrace();
                false
            }
            Request::RetraceBegin => true,
            Request::Reconsider { page } => {
                self.reconsider(page);
                false
            }
            Request::Unwind { at } => {
                unwind::load(self.world.stopped(), (at != 0).then_some(at));
                self.serve_allocators();
                self.sections_have_come();
                self.edits.accesses.code_has_come(self.world.stopped());
                false
            }
            Request::GrowHeap { bytes } => {
                self.grow_heap(bytes);
                false
            }
            Request::WatchTold { start, end } => {
                self.watch_poisoned(start, end);
                false
            }
            Request::KeepHot => {
                self.edits.accesses.keep();
                false
            }
            Request::FindLeaks => {
                self.find_leaks();
                false
            }
            Request::CountLeaks => {
                self.count_leaks();
                false
            }
            // Every request is followed by the messages that are pending.
            Request::Tell | Request::None | Request::End | Request::OpenEnd => false,
        }
    }

    /// `t` has made its `End`, or is gone (`None`).
    pub(super) fn finish(&mut self, t: Option<&Thread>, what: Request) {
        self.close_opened();
        match what {
            Request::ReleaseBegin { start, end } => {
                self.remember_code();
                self.mappings_changed(t, start, end);
                breakpoints::plant_waiting(self.world.stopped());
            }
            Request::OpenBegin { start, end } => self.open_pages(start, end, false),
            Request::LocksBegin { start, end } => {
                self.locks_settled(t, start, end);
                self.open_pages(start, end, false);
            }
            Request::ExecBegin { .. } => self.exec = follow::Exec::None,
            Request::StepOverBegin { addr } => {
                breakpoints::lower(self.world.stopped(), addr);
            }
            _ => {}
        }
        self.retrace();
    }

    /// A call of `t` has changed mappings in `[start, end)`, as `Own::mapped` says.
    fn mappings_changed(&mut self, t: Option<&Thread>, start: u64, end: u64) {
        let mapped = t.and_then(Parked::of).map(|t| t.mapped());
        self.forget_allocators(start, end, mapped.unwrap_or_default().gone);
        if let Some(t) = t {
            self.unmapped.call = u64::try_from(t.orig_rax.load(Relaxed)).ok();
            self.follow_heap(t);
        }
        paths::changed();
        self.retrace();
        self.apply_guards();
    }

    fn close_opened(&mut self) {
        for (start, end) in core::mem::take(&mut self.opened_since) {
            self.open_pages(start, end, false);
        }
    }

    /// A thread has locked memory, or unlocked it; `None`: it is gone.
    fn locks_settled(&mut self, t: Option<&Thread>, start: u64, end: u64) {
        let guards = self.world.stopped().guards();
        let (at, len) = (TargetAddr(start), end - start);
        match t
            .and_then(Parked::of)
            .map_or(Locks::Unknown, |t| t.take_locks())
        {
            Locks::Same => {}
            Locks::Locked => guards.set_locks(at, len, true),
            Locks::Unlocked => guards.set_locks(at, len, false),
            // On failure they stay as they were.
            Locks::Whole { fill } => drop(guards.lock_whole(fill)),
            Locks::Unknown => drop(guards.look_at_locks(at, len)),
        }
    }

    /// Ends an internal stop: threads that the debugger does not hold go on.
    pub(super) fn let_world_go(&mut self) {
        if !self.running {
            return;
        }
        self.world.goes_on();
        for t in g().threads.iter() {
            if t.state() == State::Parked && parked::event(t) == Event::None && !t.hold.load(SeqCst)
            {
                let how = resume_again(t);
                world::release(t, how);
            }
        }
    }
}

/// A range with all mappings of the System V segment that is attached at `at`. (It may have another one: the mappings of a
/// second attachment of the same segment.) `None`: no mapping begins there.
fn segment(at: u64) -> Option<(u64, u64)> {
    let maps = Snapshot::read().ok()?;
    let first = maps.at(at).filter(|v| v.start == at && v.inode != 0)?;
    let of_it = |v: &&Vma| (v.dev, v.inode) == (first.dev, first.inode) && !v.is_ours();
    let last = maps.vmas.iter().rev().find(of_it)?;
    Some((at, last.end.max(first.end)))
}
