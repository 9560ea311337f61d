//! Implements the protocol layer's interface to the program ([`Inferior`]).

use alloc::string::String;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering::*};

use linux_raw_sys::general as k;
use ulpf_engine::cpu::Gprs;
use ulpf_lib::eflags;
use ulpf_lib::sync::futex;
use ulpf_lib::sys;
use ulpf_lib::sys::Errno;
use ulpf_lib::{TargetAddr, WatchKind, WatchRange};
use ulpf_stub_handlers::check;
use ulpf_stub_handlers::global::g;
use ulpf_stub_handlers::paths;
use ulpf_stub_handlers::runtime::events::Event;
use ulpf_stub_handlers::runtime::frame::{UContext, fpstate_len};
use ulpf_stub_handlers::runtime::park::{self, Futex, notify};
use ulpf_stub_handlers::runtime::thread::{State, Thread};
use ulpf_stub_handlers::signals::{home, kernel, leaving};
use ulpf_stub_handlers::syscalls::fork_page;

use super::parked::{self, Parked, has_met};
use super::{
    Control, breakpoints, conditions, follow, monitor, out_of_band, pause, private, reader, text,
    watches, world,
};
use crate::files;
use crate::inferior::{AgentExpr, Inferior, Refusal, Resume, Stop, Tid};

impl Control {
    /// The frame of a thread, which is stopped.
    fn frame(&mut self, tid: Tid) -> Option<(&'static Thread, &mut UContext)> {
        let t = self.thread(tid)?;
        if self.non_stop && !t.is_stopped() {
            self.world.stopped();
        }
        // A thread that leaves a system call while the world is stopped is between two states for a moment.
        let mut rounds = 0;
        while !t.is_stopped() && rounds < 1000 {
            pause::sleep();
            rounds += 1;
        }
        if let Some(mut parked) = Parked::of(t) {
            return Some((t, parked.frame()?));
        }
        Some((t, parked::frame(t, self.world.stopped())?))
    }

    /// Writes changed registers of threads that are stopped in a system call.
    pub(super) fn settle_shadows(&mut self) {
        for (tid, was, shown) in core::mem::take(&mut self.shadows) {
            if was == shown {
                continue;
            }
            let Some(t) = g().threads.find(tid) else {
                continue;
            };
            t.dirty.store(true, SeqCst);
            let _ = world::pull_out(t);
            if let Some(c) = parked::frame(t, self.world.stopped()) {
                c.gprs = shown;
            }
        }
    }

    /// Drops an event of `t` that was not reported and does not matter now that it goes on as `how` says.
    pub(super) fn forget_stale(&self, t: &'static Thread, how: Resume) {
        let Some(parked) = Parked::of(t) else {
            return;
        };
        let stale = match parked::event(t) {
            // A breakpoint that is gone by now counts as never set: LLDB removes it to step a thread over it that has
            // just arrived at it.
            Event::Breakpoint => g().breakpoint_at(parked.pc()).is_none(),
            // It was stepped, and another thread's stop was reported first. The step is no longer wanted, or is part of
            // the range that is stepped over now.
            Event::Stepped => match how {
                Resume::Continue { .. } => true,
                Resume::RangeStep { start, end } => (start.0..end.0).contains(&parked.pc()),
                _ => false,
            },
            _ => false,
        };
        if stale {
            parked.set_event(Event::None);
        }
    }
}

impl Inferior for Control {
    fn pid(&self) -> i32 {
        g().pid.load(Relaxed)
    }

    fn threads(&self) -> Vec<Tid> {
        let mut all: Vec<_> = g()
            .threads
            .iter()
            .filter(|t| t.is_debugged() && t.tid() != 0)
            .map(|t| (t.serial.load(Relaxed), t.tid()))
            .collect();
        all.sort_unstable();
        all.into_iter().map(|(_, tid)| tid).collect()
    }

    fn gprs(&mut self, tid: Tid) -> Option<&mut Gprs> {
        if self.conditions.shown(tid).is_some() {
            return self.conditions.shown(tid);
        }
        let (t, c) = self.frame(tid)?;
        let mut now = c.gprs;
        if t.untrap.load(SeqCst) {
            now.rflags &= !eflags::TF;
        }
        if t.orig_rax.load(Relaxed) < 0 {
            return self.frame(tid).map(|(_, c)| &mut c.gprs);
        }
        let at = match self.shadows.iter().position(|s| s.0 == tid) {
            Some(n) => n,
            None => {
                self.shadows.push((tid, now, now));
                self.shadows.len() - 1
            }
        };
        self.shadows.get_mut(at).map(|s| &mut s.2)
    }

    fn xsave(&mut self, tid: Tid) -> Option<&mut [u8]> {
        let (_, c) = self.frame(tid)?;
        // SAFETY: the signal frame's image; the thread is stopped.
        unsafe {
            let (_, len) = fpstate_len(c.fpstate);
            (len > 0).then(|| core::slice::from_raw_parts_mut(c.fpstate, len))
        }
    }

    fn fs_gs_base(&self, tid: Tid) -> Option<(u64, u64)> {
        let t = self.thread(tid).filter(|t| t.is_stopped())?;
        Some((t.fs_base.load(Relaxed), t.gs_base.load(Relaxed)))
    }

    fn set_fs_gs_base(&mut self, tid: Tid, fs: u64, gs: u64) -> Result<(), Errno> {
        let t = self
            .thread(tid)
            .filter(|t| t.is_stopped())
            .ok_or(Errno(3))?;
        let differ = |now: &AtomicU64, new| now.swap(new, Relaxed) != new;
        if differ(&t.fs_base, fs) | differ(&t.gs_base, gs) {
            t.bases_dirty.store(true, SeqCst);
        }
        Ok(())
    }

    fn orig_rax(&self, tid: Tid) -> i64 {
        self.thread(tid)
            .filter(|t| t.is_stopped())
            .map_or(-1, |t| t.orig_rax.load(Relaxed))
    }

    fn siginfo(&mut self, tid: Tid) -> Option<&mut [u8; 128]> {
        let t = self.thread(tid)?;
        if let Some(mut parked) = Parked::of(t) {
            return Some(parked.siginfo());
        }
        parked::siginfo(t, self.world.stopped())
    }

    fn thread_name(&self, tid: Tid) -> String {
        use core::fmt::Write;
        let mut path = String::new();
        let pid = self.thread(tid).map_or(self.pid(), |t| t.tgid());
        let _ = write!(path, "/proc/{pid}/task/{tid}/comm\0");
        let text = files::read_short(&path).unwrap_or_default();
        let text = String::from_utf8_lossy(text.strip_suffix(b"\n").unwrap_or(&text)).into_owned();
        // The debugger prints it as it is, and a program may call its threads whatever it likes.
        match text.chars().any(char::is_control) {
            true => text.escape_debug().collect(),
            false => text,
        }
    }

    fn core(&self, tid: Tid) -> Option<u32> {
        let parked = self.thread(tid).filter(|t| t.state() == State::Parked)?;
        u32::try_from(parked.core.load(Relaxed)).ok()
    }

    fn read_memory(&mut self, addr: TargetAddr, buf: &mut [u8]) -> usize {
        let n = text::read(addr.0, buf);
        self.conditions
            .overlay(addr.0, buf.get_mut(..n).unwrap_or_default());
        n
    }

    fn write_memory(&mut self, addr: TargetAddr, data: &[u8]) -> Result<(), Errno> {
        let end = addr.0.saturating_add(data.len() as u64);
        if self.conditions.shows() {
            let mut shown = alloc::vec![0; data.len()];
            if self.read_memory(addr, &mut shown) == data.len() && shown == data {
                return Ok(());
            }
        }
        let stopped = self.world.stopped();
        self.edits.restore(stopped, addr.0, end);
        paths::changed();
        text::write(stopped, addr.0, data)
    }

    fn is_steady(&self) -> bool {
        let is_stopped =
            |t: &Thread| matches!(t.state(), State::Parked | State::Dead | State::Free);
        g().threads.iter().all(is_stopped)
    }

    fn is_private(&mut self, addr: TargetAddr, len: u64) -> bool {
        private::is_private(addr.0, len)
    }

    fn page_protection(&self, addr: TargetAddr) -> Option<u8> {
        let entry = g().page_map.entry(addr);
        entry.moved().then(|| entry.prot())
    }

    fn insert_breakpoint(
        &mut self,
        addr: TargetAddr,
        conditions: Vec<AgentExpr>,
        hardware: bool,
    ) -> Result<(), Refusal> {
        let stopped = self.world.stopped();
        self.edits.restore(stopped, addr.0, addr.0 + 1);
        match breakpoints::insert(stopped, addr.0, conditions, hardware) {
            true => Ok(()),
            false => Err(watches::refusal(
                alloc::format!("no breakpoint at {addr}"),
                "the address cannot be written: no memory is mapped there".into(),
                "check the address; a breakpoint in a library that is not loaded yet has to be pending".into(),
            )),
        }
    }

    fn renew_breakpoint(&mut self, addr: TargetAddr) {
        breakpoints::renew(self.world.stopped(), addr.0);
    }

    fn remove_breakpoint(&mut self, addr: TargetAddr) -> bool {
        breakpoints::remove(self.world.stopped(), addr.0)
    }

    fn insert_watch(&mut self, range: WatchRange, kind: WatchKind) -> Result<(), Refusal> {
        if out_of_band::is_place(range) {
            self.out_of_band.understood = true;
            return Ok(());
        }
        self.conditions.watches_changed();
        if self.non_stop {
            // Effective when it goes on.
            self.world.stopped();
        }
        self.stage_watch(range, kind)
    }

    fn remove_watch(&mut self, range: WatchRange, kind: WatchKind) -> bool {
        if out_of_band::is_place(range) {
            self.out_of_band.understood = false;
            return true;
        }
        self.conditions.watches_changed();
        if self.non_stop {
            self.world.stopped();
        }
        let own = |id| !g().is_out_of_band(id);
        self.staged.remove_one(range, kind, own).is_some()
    }

    fn set_catch_syscalls(&mut self, on: bool, numbers: &[u64]) {
        use ulpf_stub_handlers::syscalls::{catch, sites};
        if self.non_stop {
            self.world.stopped();
        }
        // A patched site would make the call unnoticed.
        match (on, catch::active()) {
            (true, false) => {
                self.patched_before = sites::ENABLED.load(SeqCst);
                self.enable_sites(false);
            }
            (false, true) if self.patched_before => self.enable_sites(true),
            _ => {}
        }
        catch::set(on, numbers);
    }

    fn set_pass_signals(&mut self, mask: u64) {
        if g().pass_signals.swap(mask, SeqCst) != mask {
            // Dispositions belong to the program's task. A stopped thread of it makes the calls; a thread that waits in
            // a system call makes them when it makes that call again.
            kernel::REFRESH.store(true, SeqCst);
            self.kick_system_calls();
        }
    }

    fn resume(&mut self, action: &dyn Fn(Tid) -> Resume) {
        let interrupted = self.end_round();
        self.settle_shadows();
        self.commit_watches();
        self.world.stopped().guards().resumed();
        (self.running, self.idle_reported) = (true, false);
        if interrupted {
            self.interrupt = true;
            notify();
            return; // and nothing runs before
        }
        for t in g().threads.iter() {
            t.ordered.store(true, SeqCst);
        }
        // A vfork child that is not debugged goes on; an event that its parent has not reported yet waits with the
        // parent.
        let how = |t: &Thread| match parked::event(t) {
            _ if t.is_debugged() => action(t.tid()),
            Event::Vforked { parent } if action(parent) == Resume::Hold => Resume::Hold,
            _ => Resume::Continue { signal: None },
        };
        let mut pending = false;
        for t in g().threads.iter() {
            let how = how(t);
            self.forget_stale(t, how);
            // Everything that had to be settled before the program's end is settled.
            if parked::event(t) == Event::Ends
                && let Some(parked) = Parked::of(t)
            {
                parked.set_event(Event::None);
            }
            t.hold.store(how == Resume::Hold, SeqCst);
            // A thread that is not debugged reports nothing (see `find_stop`) but its existence.
            let reports = t.is_debugged() || matches!(parked::event(t), Event::Vforked { .. });
            pending |= reports && has_met(t);
        }
        if pending {
            notify();
            return; // reported by the main loop before anything runs
        }
        let debugged = |t: &&Thread| t.is_debugged();
        let steps = |t: &Thread| conditions::steps(how(t));
        if !self.decide(g().threads.iter().filter(debugged).any(steps)) {
            return; // the plugin looks first
        }
        self.world.goes_on();
        for t in g().threads.iter() {
            let how = how(t);
            // A thread that was released a moment ago may have an event already.
            if how != Resume::Hold && !has_met(t) {
                world::release(t, how);
            }
        }
        notify();
    }

    fn interrupt(&mut self) {
        self.interrupt = true;
        notify();
    }

    fn set_non_stop(&mut self, on: bool) {
        match on {
            true => self.begin_non_stop(),
            false => self.end_non_stop(),
        }
    }

    fn is_stopped(&self, tid: Tid) -> bool {
        self.is_held(tid)
    }

    fn resume_some(&mut self, how: &dyn Fn(Tid) -> Option<Resume>) {
        self.let_some_go(how);
    }

    fn stop_some(&mut self, which: &dyn Fn(Tid) -> bool) -> Vec<Tid> {
        self.hold_some(which)
    }

    fn report_again(&mut self, stop: Stop) {
        self.keep_event(stop);
    }

    fn set_thread_events(&mut self, on: bool) {
        g().thread_events.store(on, SeqCst);
    }

    fn is_busy(&self) -> bool {
        self.holder.is_some()
    }

    fn follow(&mut self, what: &[u8]) {
        follow::set(what);
    }

    fn release_child(&mut self, child: Tid) {
        fork_page::release(child);
    }

    fn hold_fork(&mut self, yes: bool) {
        follow::hold_fork(yes);
    }

    fn adopt_child(&mut self, child: Tid, yes: bool) -> bool {
        follow::adopt_child(child, yes)
    }

    fn exec_word(&mut self, word: &[u8]) {
        Control::exec_word(self, word);
    }

    fn detach(&mut self, is_woken: bool) {
        if self.detached {
            return;
        }
        wait_for_entries();
        self.leaving = true;
        self.exec_is_on_its_own();
        // Requests first: their threads hold half-done work.
        let asks = || g().threads.iter().any(|t| t.state() == State::Requesting);
        loop {
            self.running = true;
            g().threads.iter().for_each(|t| t.hold.store(false, SeqCst));
            self.serve();
            let done = self.holder.is_none() && !asks();
            if done && !self.world.stop(None)
                || reader::program_is_dead()
                || self.waits_for_exec() && world::exec_happened()
            {
                return;
            }
            // Some threads may have made a request on their way to the stop.
            match done {
                true if !asks() => break,
                true => self.let_world_go(),
                false => pause::sleep(),
            }
        }
        self.leave_stopped(is_woken);
    }

    fn kill(&mut self) {
        // SAFETY: ends the program.
        let _ = unsafe { sys!(k::__NR_kill, self.pid(), k::SIGKILL) };
    }

    fn monitor(&mut self, command: &str, out: &mut dyn core::fmt::Write) -> bool {
        if self.non_stop {
            // No thread is in the middle of the state that it changes.
            self.world.stopped();
        }
        monitor::run(self, command, out)
    }
}

impl Control {
    /// The last part of a detach: the program's stopped threads go on without us.
    fn leave_stopped(&mut self, is_woken: bool) {
        if !self.world.stop(None) {
            return;
        }
        self.settle_shadows();
        breakpoints::remove_all(self.world.stopped());
        self.leave_heap();
        check::alone();
        self.drop_all_watches();
        if check::stays() && !g().guarded() {
            // The program goes on to run our code while the tables are unmapped.
            g().page_map.forget();
        }
        self.tell_at_once();
        self.edits.leave(self.world.stopped());
        self.detached = true;
        follow::release_all();
        leaving::begin_leaving();
        for t in g().threads.iter() {
            t.leaving.store(true, SeqCst);
            match is_woken {
                true => world::bring_out(t),
                false => _ = world::pull_out(t),
            }
        }
        for t in g().threads.iter() {
            if let Some(parked) = Parked::of(t) {
                parked.set_event(Event::None);
            }
            t.go.store(1, SeqCst);
            futex::wake_all(&t.go);
        }
    }

    /// A detach that serves no more requests, and threads make none from here on: see [`super::rescue`].
    pub(super) fn leave_unserved(&mut self) {
        wait_for_entries();
        park::unattended();
        self.running = true;
        self.holder = None;
        g().threads.iter().for_each(|t| t.hold.store(false, SeqCst));
        // Threads leave only at the end of their handlers. In the middle of one, they would return to the program with
        // their system calls still dispatched to us, and no handler there.
        while self.world.stop(None) && let_requests_go() {}
        self.leave_stopped(true);
    }
}

/// If the command was killed while it put the stub into the program, a thread may be in a boot entry. Without our handlers
/// its trap would kill the program. (A thread that was about to enter may not have been sent there.)
fn wait_for_entries() {
    /// Milliseconds.
    const LONGEST: u64 = 2_000;
    let end = pause::clock() + LONGEST;
    while home::is_awaited() && !reader::program_is_dead() && pause::clock() < end {
        pause::sleep();
    }
}

/// Lets requesting threads go on unserved. Returns `false` if no thread was requesting.
fn let_requests_go() -> bool {
    let asks = |t: &&Thread| t.state() == State::Requesting;
    let all = g().threads.iter().filter(asks);
    all.inspect(|t| t.gate().let_go(&Futex)).count() > 0
}
