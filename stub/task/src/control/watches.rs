//! Arming and disarming, on the stub's task.

use alloc::string::String;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::*;

use ulpf_lib::{TargetAddr, WatchId, WatchKind, WatchRange};

use super::placer::fits;
use super::{Control, watch_table};
use crate::inferior::Refusal;
use ulpf_lib::command::Placement;
use ulpf_stub_handlers::global::g;
use ulpf_stub_handlers::locks;
use ulpf_stub_handlers::runtime::debug_registers;
use ulpf_stub_handlers::runtime::events::Change;
use ulpf_stub_handlers::sequences;
use ulpf_stub_handlers::uring;
use ulpf_stub_tables::attributes::Attributes;

pub fn refusal(what: String, why: String, what_to_do: String) -> Refusal {
    Refusal {
        what,
        why,
        what_to_do,
    }
}

pub fn no_numbers() -> Refusal {
    refusal(
        "no further watch".into(),
        "all watch numbers are in use".into(),
        "restart the program, or watch fewer and larger ranges".into(),
    )
}

/// Treatment of a watch where no memory is mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IfUnmapped {
    /// The address is probably wrong.
    Refuse,
    /// The watch waits: a pointer that is NULL now, and that the debugger follows.
    Await,
}

const STAYS: &str = "ulpf: a thread is in a system call that cannot be interrupted, and the kernel may be writing to memory: \
                     changes of watches take effect with the next one.\n";

impl Control {
    /// Stages a watch for the debugger's Z2, Z3 or Z4.
    pub fn stage_watch(&mut self, range: WatchRange, kind: WatchKind) -> Result<(), Refusal> {
        let id = self.stage(range, kind, self.placement.wanted, IfUnmapped::Await)?;
        let was = g().attributes(id).clone();
        let filter = was.filter.filter(|f| !f.is_debuggers());
        let filter = filter
            .or_else(|| self.filters.find(range))
            .or_else(|| self.conditions.find(range, kind));
        self.set_attributes(
            id,
            Attributes {
                stop: true,
                out_of_band: false,
                // For `monitor ulpf last`.
                log: true,
                filter,
                ..was
            },
        );
        Ok(())
    }

    /// Adds a watch to the staged set, or says why it cannot be armed.
    pub fn stage(
        &mut self,
        range: WatchRange,
        kind: WatchKind,
        placement: Placement,
        if_unmapped: IfUnmapped,
    ) -> Result<WatchId, Refusal> {
        // A watch that is switched off is not reused: its owner may switch it on again.
        let off = &self.disabled;
        // Nor is a part of another watch.
        let whole = |id| !off.has(id) && g().attributes(id).group.is_none();
        if let Some(id) = self.staged.restore_one(range, kind, whole) {
            return Ok(id);
        }
        let placement = match placement {
            Placement::Auto if self.has_sequences(range, kind) => Placement::Register,
            other => other,
        };
        let (placement, waits) = self.possible(range, kind, (placement, true), if_unmapped)?;
        let id = self.staged.insert_new(range, kind).ok_or_else(no_numbers)?;
        if waits {
            self.unmapped.awaits(id, range);
        }
        let attributes = Attributes {
            placement,
            ..Attributes::default()
        };
        self.set_attributes(id, attributes);
        if placement == Placement::Register {
            self.force_register(id);
        }
        Ok(id)
    }

    /// Where it can live, and whether its memory is not mapped yet. A small watch on memory that cannot be guarded gets a debug
    /// register, if one is free. `code`: also in executable memory.
    pub(super) fn possible(
        &mut self,
        range: WatchRange,
        kind: WatchKind,
        (placement, code): (Placement, bool),
        if_unmapped: IfUnmapped,
    ) -> Result<(Placement, bool), Refusal> {
        let refused = match self.check(range, kind, placement, if_unmapped) {
            Ok(waits) => return Ok((placement, waits)),
            Err(refused) => refused,
        };
        let register = placement == Placement::Auto
            && fits(range, kind)
            && self
                .world
                .stopped()
                .guards()
                .only_registers(range, kind, code);
        if !register {
            return Err(refused);
        }
        self.check(range, kind, Placement::Register, if_unmapped)
            .map(|waits| (Placement::Register, waits))
    }

    /// Checks whether it can be armed. `true`: once its memory is mapped.
    pub fn check(
        &mut self,
        range: WatchRange,
        kind: WatchKind,
        placement: Placement,
        if_unmapped: IfUnmapped,
    ) -> Result<bool, Refusal> {
        let possible = if ulpf_stub_handlers::runtime::library_link::is_blind() {
            Err(refusal(
                alloc::format!("cannot watch {} bytes at {}", range.len, range.start),
                "the program watches itself with libulpf, by debug registers or protection keys, \
                 which would miss what is performed for your watch"
                    .into(),
                "run it with ULPF_BACKEND=signal, which goes together with ulpf".into(),
            ))
        } else if placement == Placement::Register {
            self.check_register(range, kind).map(|()| false)
        } else {
            let stopped = self.world.stopped();
            self.edits
                .accesses
                .give_up_code(stopped, range.start.0, range.end().0);
            let guards = stopped.guards();
            match if_unmapped {
                IfUnmapped::Refuse => guards.check(range, kind).map(|()| false),
                IfUnmapped::Await => guards.check_awaiting(range, kind).map(|at| at.is_some()),
            }
        };
        possible.inspect_err(|r| self.last_refusal = Some(r.clone()))
    }

    pub fn set_attributes(&mut self, id: WatchId, a: Attributes) {
        self.edits.accesses.classes.declassify();
        self.set_first_attributes(id, a);
    }

    /// The same for a watch that takes effect with the next commit: it is on no page yet.
    pub fn set_first_attributes(&mut self, id: WatchId, a: Attributes) {
        let watches = &mut self.world.stopped().tables_mut().watches;
        watches.attributes.set(id, a);
        watch_table::attributes_changed(id);
    }

    /// Makes the staged set the one in force. Cheap when nothing has changed.
    pub fn commit_watches(&mut self) {
        self.trace_paths();
        self.prepare_backtraces();
        let changes = self.staged.commit();
        self.paths.committed();
        // The debugger may have written to what the registers watch.
        debug_registers::look_all(super::text::read);
        if changes.is_empty() {
            return;
        }
        self.world.stopped().tables_mut().watches.list = self.staged.list() as *const _;
        watch_table::changed(&changes);
        self.place(&changes);
        self.edits.accesses.classes.forget(&changes);
        self.apply_guards();
        self.kick_system_calls();
    }

    /// Sets the guards that the watches in force need.
    pub fn apply_guards(&mut self) {
        self.world.stopped().guards().resumed();
        let placed = self.placement.placed();
        let wanted: Vec<_> = self.staged.list().pages_without(&placed).collect();
        let wanted = self.spare_sequences(wanted);
        if self.world.stopped().guards().would_change(&wanted) && !self.pull_out_of_system_calls() {
            self.warn(STAYS);
            return;
        }
        let unarmed = self.world.stopped().guards().apply(wanted);
        for u in unarmed {
            let run = WatchRange::new(u.run.start, u.run.end.0 - u.run.start.0);
            let kind = WatchKind::Write;
            // (It has become such memory since.)
            if run.is_some_and(|run| {
                self.world
                    .stopped()
                    .guards()
                    .only_registers(run, kind, true)
            }) && self.leave_page(u.run.start.0)
            {
                continue;
            }
            let r = u.refusal;
            let text = alloc::format!("ulpf: {}: {}; {}\n", r.what, r.why, r.what_to_do);
            self.warn(&text);
            self.last_refusal = Some(r);
        }
        let some = g().guards().moved_pages() > 0;
        g().moved.store(some, SeqCst);
        g().watching.store(!self.staged.list().is_empty(), SeqCst);
        self.refresh_filter();
        locks::reserve(self.world.stopped(), self.paths.pages());
        self.note_unmapped();
    }

    /// Pulls stopped threads out of their system calls. The kernel may be writing to memory that is about to be moved
    /// or given back, and these writes would be lost. The threads make their calls again. `false`: one cannot be pulled
    /// out.
    #[must_use]
    pub(super) fn pull_out_of_system_calls(&self) -> bool {
        use ulpf_stub_handlers::runtime::thread::{State, Thread};
        let waiting = || {
            let all = g().threads.iter();
            all.filter(|t: &&Thread| t.state() == State::InSyscall)
        };
        // (A thread that gets no signal now gets one below.)
        waiting().for_each(|t| {
            let _ = super::world::send_park_signals(t);
        });
        let stay = waiting().filter(|t| !super::world::pull_out(t));
        stay.count() == 0
    }

    /// Threads that are stopped in a system call may have passed the kernel addresses that are watched now: they come
    /// out and make the call again.
    pub fn kick_system_calls(&self) {
        for t in g().threads.iter() {
            // (No signal was sent: one is in exec, which may fail.)
            while t.state() == ulpf_stub_handlers::runtime::thread::State::InSyscall
                && !super::world::send_park_signals(t)
                && !super::world::exec_happened()
            {
                super::pause::sleep();
            }
        }
    }

    /// Queues a warning for the user that no reply can carry.
    pub fn warn(&mut self, text: &str) {
        self.notices.push(text.into());
    }

    pub fn release_memory(&mut self, start: u64, end: u64) {
        self.edits.forget(self.world.stopped(), start, end);
        self.forget_code(start, end);
        if !g().touches(start, end) {
            return;
        }
        // (Bytes that are read into memory that another thread unmaps are lost without us, too.)
        let _ = self.pull_out_of_system_calls();
        let guards = self.world.stopped().guards();
        guards.resumed();
        if let Err(r) = guards.release(TargetAddr(start), end - start) {
            let text = alloc::format!("ulpf: {}: {}; {}\n", r.what, r.why, r.what_to_do);
            self.warn(&text);
        }
    }

    /// Changes moved memory. `false`: that needs more than this, or is done in part.
    pub fn change_in_place(&mut self, start: u64, end: u64, change: Change) -> bool {
        let (at, len) = (TargetAddr(start), end - start);
        // Another thread may have been first.
        if !self.world.stopped().guards().can_change(at, len) {
            return false;
        }
        // Pending writes by the kernel may not be permitted under the new protection, and would come back in memory that
        // is mapped here later.
        if change != Change::Discard && !self.pull_out_of_system_calls() {
            return false;
        }
        if change == Change::Unmap {
            self.edits.forget(self.world.stopped(), start, end);
        }
        let guards = self.world.stopped().guards();
        guards.resumed();
        let done = match change {
            Change::Protect(prot) => guards.set_prot(at, len, prot),
            Change::Discard => guards.discard(at, len),
            Change::Unmap => guards.unmap(at, len),
        };
        done.is_ok()
    }

    /// Opens (or closes again) the guarded pages of a range for one step or one system call.
    pub fn open_pages(&mut self, start: u64, end: u64, open: bool) {
        let guards = self.world.stopped().guards();
        guards.open(TargetAddr(start), end - start, open);
    }

    pub fn drop_all_watches(&mut self) {
        let reads_on = g().guarded() && !self.pull_out_of_system_calls();
        self.staged.remove_all();
        self.staged.commit();
        self.forget_paths();
        self.edits.accesses.classes.declassify();
        self.placement.release_all();
        let stopped = self.world.stopped();
        stopped.tables_mut().watches.list = self.staged.list() as *const _;
        stopped.guards().resumed();
        // Requests of io_uring in flight, and a call that cannot be interrupted, hold addresses in the alias: their memory
        // stays as it is, without guards.
        let stays = reads_on || uring::queries::in_use(0, ulpf_lib::addr::USER_END);
        if stays {
            let _ = stopped.guards().apply([]);
        } else if sequences::has_area(0, ulpf_lib::addr::USER_END) {
            // Their threads tell the kernel of another place for their areas as they go on; until then it writes to the
            // windows, which the command unmaps last.
            let _ = stopped.guards().apply([]);
            let _ = stopped
                .guards()
                .release(TargetAddr(0), ulpf_lib::addr::USER_END);
        } else if let Err(r) = stopped.guards().release_all() {
            let text = alloc::format!("ulpf: {}: {}; {}\n", r.what, r.why, r.what_to_do);
            self.warn(&text);
        }
        g().moved.store(stays, SeqCst);
        g().watching.store(false, SeqCst);
        g().heap_watched.store(false, SeqCst);
        self.refresh_filter();
        self.kick_system_calls();
    }
}
