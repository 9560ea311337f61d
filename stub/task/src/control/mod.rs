//! The stub's own task: its main loop, run control, and what handlers cannot do themselves.
//!
//! Everything that changes shared structures (watches, guards, breakpoints) happens here, with all
//! program threads at rest. A program thread that needs such a change (fork, munmap of guarded
//! memory, a step with an open page) asks with a `Request`: the loop parks the others, prepares,
//! lets that one thread go on alone, and cleans up at its `Request::End`.

mod backend;
mod bulk;
mod files;
mod filters;
mod follow;
mod functions;
pub mod heap;
mod last;
pub mod left;
mod monitor;
pub mod notices;
mod off;
mod parked;
mod patches;
mod pause;
mod perf;
mod placement;
mod places;
mod reader;
mod rooms;
mod roster;
mod sites;
mod socket;
pub mod text;
mod trampolines;
mod unwind;
mod vanished;
mod watchdog;
mod watches;
mod world;

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering::*};

use linux_raw_sys::general as k;
use ulpf_engine::cpu::Gprs;
use ulpf_lib::boot::{BOOT_LAUNCHED, BOOT_NO_PATCH, BOOT_PLACE_GUARD, BOOT_PLACE_REGISTER};
use ulpf_lib::staged::StagedWatches;
use ulpf_lib::sys;
use ulpf_lib::sys::Errno;
use ulpf_lib::{TargetAddr, WatchKind, WatchRange};

use parked::Parked;

use crate::gdb::GdbSession;
use crate::inferior::{AgentExpr, Inferior, Refusal, Resume, Stop, StopReason, Tid};
use ulpf_stub_handlers::global::{g, machine};
use ulpf_stub_handlers::runtime::events::{Event, Request};
use ulpf_stub_handlers::runtime::frame::{UContext, fpstate_len};
use ulpf_stub_handlers::runtime::park::{futex_wake, notify};
use ulpf_stub_handlers::runtime::robust;
use ulpf_stub_handlers::runtime::thread::{State, Thread};
use ulpf_stub_handlers::signals::{kernel, leaving};
use ulpf_stub_tables::attributes::Wish;
use ulpf_stub_tables::breakpoints::Breakpoint;

pub struct Control {
    fd: i32,
    pub(crate) world: world::World,
    staged: StagedWatches,
    placement: placement::Placement,
    /// The debugger has let the program run.
    running: bool,
    interrupt: bool,
    /// Thread that the last stop was about.
    current: Tid,
    /// The program thread that runs alone after a `…Begin`.
    holder: Option<(&'static Thread, Request)>,
    /// Pages that the holder has asked for since, because its step met another guarded page.
    opened_since: Vec<(u64, u64)>,
    /// Registers shown for threads that rest in a system call: (thread, as they are, as shown).
    shadows: Vec<(Tid, Gprs, Gprs)>,
    last_refusal: Option<Refusal>,
    notices: notices::Notices,
    vanished: vanished::Vanished,
    /// Sites were patched until a system call was to be caught.
    patched_before: bool,
    told_of_io_uring: bool,
    heap: heap::Heap,
    filters: filters::ByRange,
    bulk: bulk::Bulk,
    off: off::Off,
    /// Since the holder went on alone.
    holding: Option<watchdog::Watchdog>,
    detached: bool,
    exec: follow::Exec,
    patches: patches::Patches,
    sites: sites::Sites,
}

/// Runs until the program ends or is left alone (`true`).
pub fn run(fd: i32, flags: u32, ready: impl FnOnce()) -> bool {
    ulpf_stub_handlers::say::task_tells(notices::tell);
    let pid = g().pid.load(Relaxed);
    // SAFETY: a descriptor for the program's end.
    let pidfd = unsafe { sys!(k::__NR_pidfd_open, pid, 0) };
    let started = pidfd.and_then(|p| reader::start(fd, p as i32));
    if started.is_err() {
        ulpf_stub_handlers::say::write_stderr(
            "ulpf: cannot watch the program's end (pidfd_open)\n",
        );
    }
    g().debugger.store(true, SeqCst);
    ready();
    let mut c = Control {
        fd,
        world: world::World::default(),
        staged: StagedWatches::new(),
        placement: placement::Placement::default(),
        running: true,
        interrupt: true,
        current: pid,
        holder: None,
        opened_since: Vec::new(),
        shadows: Vec::new(),
        last_refusal: None,
        notices: Default::default(),
        vanished: Default::default(),
        patched_before: false,
        told_of_io_uring: false,
        heap: heap::Heap::default(),
        filters: filters::ByRange::default(),
        bulk: bulk::Bulk::default(),
        off: off::Off::default(),
        holding: None,
        detached: false,
        exec: follow::Exec::None,
        sites: sites::Sites::new(),
        patches: patches::Patches::new(),
    };
    c.placement.wish = match flags & (BOOT_PLACE_GUARD | BOOT_PLACE_REGISTER) {
        BOOT_PLACE_GUARD => Wish::Guard,
        BOOT_PLACE_REGISTER => Wish::Register,
        _ => Wish::Auto,
    };
    if flags & BOOT_NO_PATCH != 0 {
        ulpf_stub_handlers::syscalls::sites::ENABLED.store(false, SeqCst);
        ulpf_stub_handlers::patches::ENABLED.store(false, SeqCst);
    }
    c.wait_for_boot();
    backend::choose(flags, c.world.rest());
    let mut session = GdbSession::new(pid);
    c.first_stop(&mut session);
    c.main_loop(&mut session, flags);
    if !c.detached {
        c.program_is_gone();
    }
    c.detached
}

impl Control {
    /// All threads come to us with the park signal as the command detaches from them.
    fn wait_for_boot(&mut self) {
        loop {
            let seen = g().event.load(SeqCst);
            let mut all = 0;
            let mut resting = 0;
            for t in g().threads.iter() {
                all += 1;
                resting += t.rests() as u32;
            }
            if (all > 0 && all == resting)
                || reader::program_is_dead()
                || reader::CLOSED.load(SeqCst)
            {
                return;
            }
            pause::wait_a_little(seen);
        }
    }

    fn first_stop(&mut self, session: &mut GdbSession) {
        self.running = false;
        self.interrupt = false;
        let _ = session;
    }

    fn main_loop(&mut self, session: &mut GdbSession, flags: u32) {
        let mut buf = vec![0u8; 64 << 10];
        loop {
            let seen = g().event.load(SeqCst);
            if reader::program_is_dead() {
                return;
            }
            let stop_first = self.stop_comes_first();
            if !stop_first {
                self.serve();
            }
            self.tell(session);
            if self.waits_for_exec() {
                let before = self.exec;
                self.hear(session, &mut buf);
                if reader::CLOSED.load(SeqCst) {
                    self.exec_is_on_its_own();
                }
                if self.exec == follow::Exec::Over && !self.child_has_left() {
                    return;
                }
                if self.exec != before {
                    continue;
                }
            }
            if self.holder.is_none() {
                loop {
                    let n = reader::take(&mut buf);
                    if n == 0 {
                        break;
                    }
                    let fd = self.fd;
                    let mut out = |b: &[u8]| socket::send_all(fd, b);
                    session.incoming(self, buf.get(..n).unwrap_or(&[]), &mut out);
                    if self.detached {
                        return;
                    }
                }
                // Stopped: only the debugger can say something now.
                reader::listen(self.running);
                while !self.running && !reader::CLOSED.load(SeqCst) && !reader::program_is_dead() {
                    let n = match reader::take(&mut buf) {
                        0 => reader::receive(&mut buf),
                        n => Some(n),
                    };
                    let Some(n) = n else { continue };
                    let fd = self.fd;
                    let mut out = |b: &[u8]| socket::send_all(fd, b);
                    session.incoming(self, buf.get(..n).unwrap_or(&[]), &mut out);
                    if self.detached {
                        return;
                    }
                }
                if reader::program_is_dead() {
                    return;
                }
                reader::listen(true);
                if reader::CLOSED.load(SeqCst) {
                    if flags & BOOT_LAUNCHED != 0 {
                        self.kill();
                    } else {
                        self.detach();
                    }
                    return;
                }
                if self.running
                    && let Some(stop) = self.find_stop()
                {
                    self.world.stop(None);
                    self.tell(session);
                    self.running = false;
                    self.interrupt = false;
                    self.current = stop.tid;
                    let fd = self.fd;
                    session.stopped(self, stop, &mut |b: &[u8]| socket::send_all(fd, b));
                    continue;
                }
                if stop_first {
                    continue;
                }
            }
            let pause = g().exec_pending.load(SeqCst) != 0;
            if pause && self.exec_happened() {
                return;
            }
            if let (Some((t, what)), Some(dog)) = (self.holder, &mut self.holding)
                && dog.barks()
            {
                watchdog::holder_runs(t, what);
            }
            if g().event.load(SeqCst) == seen {
                let tick = [0u64, 5_000_000];
                let second = [1u64, 0];
                let timeout = if pause {
                    tick.as_ptr()
                } else if self.holder.is_some() {
                    second.as_ptr()
                } else {
                    core::ptr::null()
                };
                // SAFETY: waits for the next event.
                let _ = unsafe { sys!(k::__NR_futex, &g().event as *const _, 128, seen, timeout) };
            }
        }
    }

    /// Console lines, while the debugger waits for a stop.
    fn tell(&mut self, session: &mut GdbSession) {
        use ulpf_stub_handlers::syscalls::IO_URING;
        if self.running && !self.told_of_io_uring && IO_URING.load(SeqCst) {
            self.told_of_io_uring = true;
            self.notices.push(
                "ulpf: the program has asked for io_uring and got ENOSYS: its kernel threads would write past the \
                 watches. Most programs go on with ordinary calls; one that does not cannot be watched.\n"
                    .into(),
            );
        }
        self.tell_failures();
        if self.running {
            let fd = self.fd;
            for text in self.notices.take() {
                session.console(&text, &mut |b: &[u8]| socket::send_all(fd, b));
            }
        }
    }

    /// The program has ended, or is another one by now: who shares memory with it may wait for its locks.
    fn program_is_gone(&self) {
        for _ in 0..1000 {
            if reader::program_is_dead() || self.exec == follow::Exec::Over || self.exec_happened()
            {
                robust::exit_all(&text::read);
                return;
            }
            pause::nap(); // it is being killed
        }
    }

    /// While a thread waits to exec the program runs, for the debugger, and only a few packets may
    /// come; among them the command's word.
    fn hear(&mut self, session: &mut GdbSession, buf: &mut [u8]) {
        loop {
            let n = reader::take(buf);
            if n == 0 {
                return;
            }
            let fd = self.fd;
            let mut out = |b: &[u8]| socket::send_all(fd, b);
            session.incoming(self, buf.get(..n).unwrap_or(&[]), &mut out);
        }
    }

    /// After a successful exec the process runs another image, and we are alone in the old one.
    fn exec_happened(&self) -> bool {
        let mut path = String::new();
        use core::fmt::Write;
        let _ = write!(path, "/proc/{}/maps\0", g().pid.load(Relaxed));
        let Some(maps) = files::read_file(&path) else {
            return false;
        };
        let mut needle = String::new();
        let _ = write!(needle, "{:x}-", machine().image.0);
        !maps.is_empty() && !maps.windows(needle.len()).any(|w| w == needle.as_bytes())
    }

    /// A breakpoint that was hit but not yet reported, and is gone by now, was never there: LLDB
    /// takes it out to step a thread over it that has just arrived at it.
    fn forget_stale_breakpoint(&self, t: &'static Thread) {
        if let Some(parked) = Parked::of(t)
            && parked::event(t) == Event::Breakpoint
            && g().breakpoint_at(parked.pc()).is_none()
        {
            parked.set_event(Event::None);
        }
    }

    /// A thread wants to exec, which ends all others, and one of these still has something to report.
    fn stop_comes_first(&self) -> bool {
        let execs = |t: &Thread| matches!(asked(t), Some(Request::ExecBegin { .. }));
        self.running
            && self.holder.is_none()
            && g().threads.iter().any(execs)
            && g().threads.iter().any(|t| t.is_debugged() && has_met(t))
    }

    /// Which thread has something to report?
    fn find_stop(&mut self) -> Option<Stop> {
        for t in g().threads.iter() {
            // What a held thread has met is reported once the debugger lets it go.
            if t.state() != State::Parked || t.hold.load(SeqCst) {
                continue;
            }
            let Some(parked) = Parked::of(t) else {
                continue;
            };
            let event = parked.event();
            let reason = match event {
                // It came out of a system call and saw the world rest, a moment before everybody was let go.
                Event::None if g().world.load(SeqCst) == 0 => {
                    let how = resume_again(t);
                    world::release(t, how);
                    continue;
                }
                Event::None => continue,
                Event::Breakpoint => {
                    if g().breakpoint_at(parked.pc()).is_none() {
                        parked.set_event(Event::None); // removed meanwhile: as if it had never been hit
                        if g().world.load(SeqCst) == 0 {
                            world::release(t, Resume::Continue { signal: None });
                        }
                        continue;
                    }
                    StopReason::Breakpoint
                }
                Event::Stepped => StopReason::Stepped,
                Event::Watch { id, kind, addr, .. } => self.bulk.reason(t, id, kind, addr),
                Event::Signal(n) => StopReason::Signal(n),
                Event::Syscall { nr, entry } => StopReason::Syscall { nr, entry },
                Event::Forked { child } => StopReason::Forked {
                    child,
                    vfork: false,
                },
                // Its parent's to report, once that is let go.
                Event::Vforked { parent } if self.is_held(parent) => {
                    t.hold.store(true, SeqCst);
                    continue;
                }
                Event::Vforked { parent } => {
                    parked.set_event(Event::None);
                    return Some(Stop {
                        tid: parent,
                        reason: StopReason::Forked {
                            child: t.tid(),
                            vfork: true,
                        },
                    });
                }
                Event::VforkDone => StopReason::VforkDone,
            };
            if !t.is_debugged() {
                // A vfork child shares our memory, not our debugger.
                let signal = if let Event::Signal(n) = event {
                    Some(n)
                } else {
                    None
                };
                parked.set_event(Event::None);
                world::release(t, Resume::Continue { signal });
                continue;
            }
            self.notices.explain(parked, event);
            parked.set_event(Event::None);
            return Some(Stop {
                tid: t.tid(),
                reason,
            });
        }
        if self.interrupt {
            self.world.stop(None);
            let all = self.threads();
            let tid = all
                .iter()
                .find(|t| **t == self.current && !self.is_held(**t))
                .or_else(|| all.iter().find(|t| !self.is_held(**t)))
                .or_else(|| all.first())
                .copied()?;
            return Some(Stop {
                tid,
                reason: StopReason::Interrupted,
            });
        }
        None
    }

    /// Serves what program threads have asked for.
    fn serve(&mut self) {
        loop {
            if let Some((t, what)) = self.holder {
                if self.child_is_leaving(t) {
                    return;
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
                        return;
                    }
                    self.finish(Some(t), what);
                    self.holder = None;
                    self.tell_at_once();
                    self.let_world_go();
                    world::answer(t);
                } else if let Some(Request::OpenBegin { start, end }) = asked(t) {
                    // The world rests for it already; its `End` closes these, too.
                    self.open_pages(start, end, true);
                    self.opened_since.push((start, end));
                    world::answer(t);
                    return;
                } else {
                    return;
                }
            }
            if !self.running {
                return;
            }
            // A held thread waits with its request: served, it would run on.
            let asks = |t: &&Thread| t.state() == State::Requesting && !t.hold.load(SeqCst);
            let Some(t) = g().threads.iter().find(asks) else {
                return;
            };
            let Some(what) = asked(t) else {
                return;
            };
            if what == Request::End {
                world::answer(t);
                continue;
            }
            if !self.world.stop(Some(t)) {
                return;
            }
            if self.begin(t, what) {
                self.holder = Some((t, what));
                self.holding = Some(watchdog::Watchdog::new());
                world::answer(t);
                return;
            }
            self.tell_at_once();
            self.let_world_go();
            world::answer(t);
        }
    }

    /// Before a thread goes on, for it may end the program, and then nobody listens any more.
    fn tell_at_once(&mut self) {
        if self.running {
            for text in self.notices.take() {
                notices::tell(&text);
            }
        }
    }

    /// The world is at rest but for `t`. `true`: `t` goes on alone until its `End`.
    fn begin(&mut self, t: &'static Thread, what: Request) -> bool {
        match what {
            Request::ExecBegin { path, len, dir } => {
                self.exec_begins(t, (path, len), dir);
                true
            }
            Request::ForkBegin => {
                self.world.rest().guards().prepare_fork();
                true
            }
            Request::ReleaseBegin { start, end } => {
                self.release_memory(start, end);
                true
            }
            Request::OpenBegin { start, end } => {
                // What is about to be stepped must stand there itself.
                if let Some(pc) = Parked::of(t).map(|t| t.pc()) {
                    self.patches.restore(self.world.rest(), pc, pc + 1);
                }
                self.open_pages(start, end, true);
                true
            }
            Request::StepOverBegin { addr } => {
                if let Some(b) = g().breakpoint_at(addr) {
                    let _ = text::restore(b.addr, b.original);
                }
                true
            }
            Request::Patch { insn } => {
                self.sites.patch(self.world.rest(), insn);
                false
            }
            Request::PatchAccess { pc, page } => {
                self.patches.serve(self.world.rest(), pc, page);
                false
            }
            Request::Cool { start } => {
                self.patches.cool(self.world.rest(), start);
                false
            }
            Request::SitesAnew => {
                self.sites.remove_all(self.world.rest());
                false
            }
            Request::NoUpcalls => {
                backend::no_upcalls(self.world.rest());
                false
            }
            Request::NoPatches => {
                self.patches.disable(self.world.rest());
                false
            }
            Request::Rearm => {
                self.vanished.call = u64::try_from(t.orig_rax.load(Relaxed)).ok();
                self.follow_heap(t);
                self.apply_guards();
                false
            }
            Request::Adopt => {
                self.adopt(t);
                false
            }
            Request::Reconsider { page } => {
                self.reconsider(page);
                false
            }
            Request::Unwind { at } => {
                unwind::load(self.world.rest(), (at != 0).then_some(at));
                false
            }
            Request::None | Request::End => false,
        }
    }

    /// `t` has made its `End`, or is gone (`None`).
    fn finish(&mut self, t: Option<&Thread>, what: Request) {
        for (start, end) in core::mem::take(&mut self.opened_since) {
            self.open_pages(start, end, false);
        }
        match what {
            Request::ReleaseBegin { .. } => {
                if let Some(t) = t {
                    self.vanished.call = u64::try_from(t.orig_rax.load(Relaxed)).ok();
                    self.follow_heap(t);
                }
                self.apply_guards();
            }
            Request::OpenBegin { start, end } => self.open_pages(start, end, false),
            Request::ExecBegin { .. } => self.exec = follow::Exec::None,
            Request::StepOverBegin { addr } if g().breakpoint_at(addr).is_some() => {
                let _ = text::plant(addr);
            }
            _ => {}
        }
    }

    /// After an internal stop: whoever the debugger does not hold goes on.
    fn let_world_go(&mut self) {
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

    fn thread(&self, tid: Tid) -> Option<&'static Thread> {
        g().threads.find(tid).filter(|t| t.is_debugged())
    }

    fn is_held(&self, tid: Tid) -> bool {
        self.thread(tid).is_some_and(|t| t.hold.load(SeqCst))
    }

    /// The frame of a thread, which rests.
    fn frame(&mut self, tid: Tid) -> Option<(&'static Thread, &mut UContext)> {
        let t = self.thread(tid)?;
        // A thread that leaves a system call while the world rests is between two states for a moment.
        let mut rounds = 0;
        while !t.rests() && rounds < 1000 {
            pause::nap();
            rounds += 1;
        }
        Some((t, parked::frame(t, self.world.rest())?))
    }

    /// Writes changed registers of threads that rest in a system call.
    fn settle_shadows(&mut self) {
        for (tid, was, shown) in core::mem::take(&mut self.shadows) {
            if was == shown {
                continue;
            }
            let Some(t) = g().threads.find(tid) else {
                continue;
            };
            t.dirty.store(true, SeqCst);
            world::pull_out(t);
            if let Some(c) = parked::frame(t, self.world.rest()) {
                c.gprs = shown;
            }
        }
    }
}

/// What a thread waits for.
fn asked(t: &Thread) -> Option<Request> {
    let parked = Parked::of(t).filter(|_| t.state() == State::Requesting);
    parked.map(|t| t.request())
}

/// It rests for something, which is to be reported now.
fn has_met(t: &Thread) -> bool {
    !t.hold.load(SeqCst) && parked::event(t) != Event::None
}

/// A thread parked in the middle of a debugger's step goes on stepping.
fn resume_again(t: &Thread) -> Resume {
    if !t.stepping.load(Relaxed) {
        return Resume::Continue { signal: None };
    }
    let (start, end) = t.range();
    if (start, end) != (0, 0) {
        return Resume::RangeStep {
            start: TargetAddr(start),
            end: TargetAddr(end),
        };
    }
    Resume::Step { signal: None }
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
        let (t, c) = self.frame(tid)?;
        let now = c.gprs;
        if t.orig_rax.load(Relaxed) < 0 {
            return parked::frame(t, self.world.rest()).map(|c| &mut c.gprs);
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
        // SAFETY: the signal frame's image; the thread rests.
        unsafe {
            let (_, len) = fpstate_len(c.fpstate);
            (len > 0).then(|| core::slice::from_raw_parts_mut(c.fpstate, len))
        }
    }

    fn fs_gs_base(&self, tid: Tid) -> Option<(u64, u64)> {
        let t = self.thread(tid).filter(|t| t.rests())?;
        Some((t.fs_base.load(Relaxed), t.gs_base.load(Relaxed)))
    }

    fn set_fs_gs_base(&mut self, tid: Tid, fs: u64, gs: u64) -> Result<(), Errno> {
        let t = self.thread(tid).filter(|t| t.rests()).ok_or(Errno(3))?;
        let differ = |now: &AtomicU64, new| now.swap(new, Relaxed) != new;
        if differ(&t.fs_base, fs) | differ(&t.gs_base, gs) {
            t.bases_dirty.store(true, SeqCst);
        }
        Ok(())
    }

    fn orig_rax(&self, tid: Tid) -> i64 {
        self.thread(tid)
            .filter(|t| t.rests())
            .map_or(-1, |t| t.orig_rax.load(Relaxed))
    }

    fn siginfo(&mut self, tid: Tid) -> Option<&mut [u8; 128]> {
        let t = self.thread(tid)?;
        parked::siginfo(t, self.world.rest())
    }

    fn thread_name(&self, tid: Tid) -> String {
        use core::fmt::Write;
        let mut path = String::new();
        let pid = self.thread(tid).map_or(self.pid(), |t| t.tgid());
        let _ = write!(path, "/proc/{pid}/task/{tid}/comm\0");
        let text = files::read_file(&path).unwrap_or_default();
        let text = String::from_utf8_lossy(text.strip_suffix(b"\n").unwrap_or(&text)).into_owned();
        // The debugger prints it as it is, and a program may call its threads whatever it likes.
        match text.chars().any(char::is_control) {
            true => text.escape_debug().collect(),
            false => text,
        }
    }

    fn read_memory(&mut self, addr: TargetAddr, buf: &mut [u8]) -> usize {
        text::read(addr.0, buf)
    }

    fn write_memory(&mut self, addr: TargetAddr, data: &[u8]) -> Result<(), Errno> {
        let end = addr.0.saturating_add(data.len() as u64);
        let rest = self.world.rest();
        self.sites.restore(rest, addr.0, end);
        self.patches.restore(rest, addr.0, end);
        text::write(rest, addr.0, data)
    }

    fn page_protection(&self, addr: TargetAddr) -> Option<u8> {
        let entry = g().page_map.entry(addr);
        entry.moved().then(|| entry.prot())
    }

    fn insert_breakpoint(
        &mut self,
        addr: TargetAddr,
        conditions: Vec<AgentExpr>,
    ) -> Result<(), Refusal> {
        let rest = self.world.rest();
        self.sites.restore(rest, addr.0, addr.0 + 1);
        self.patches.restore(rest, addr.0, addr.0 + 1);
        let list = &mut rest.tables_mut().breakpoints;
        if let Some(b) = list.at_mut(addr.0) {
            b.conditions = conditions;
            return Ok(());
        }
        match text::plant(addr.0) {
            Ok(original) => {
                list.insert(Breakpoint {
                    addr: addr.0,
                    original,
                    conditions,
                });
                Ok(())
            }
            Err(_) => Err(watches::refusal(
                alloc::format!("no breakpoint at {addr}"),
                "the address cannot be written: no memory is mapped there".into(),
                "check the address; a breakpoint in a library that is not loaded yet has to be pending".into(),
            )),
        }
    }

    fn remove_breakpoint(&mut self, addr: TargetAddr) -> bool {
        let list = &mut self.world.rest().tables_mut().breakpoints;
        let Some(b) = list.remove(addr.0) else {
            return false;
        };
        let _ = text::restore(b.addr, b.original);
        true
    }

    fn insert_watch(&mut self, range: WatchRange, kind: WatchKind) -> Result<(), Refusal> {
        if bulk::is_place(range) {
            self.bulk.understood = true;
            return Ok(());
        }
        self.stage_watch(range, kind)
    }

    fn remove_watch(&mut self, range: WatchRange, kind: WatchKind) -> bool {
        if bulk::is_place(range) {
            self.bulk.understood = false;
            return true;
        }
        let own = |id| !g().is_bulk(id);
        self.staged.remove_one(range, kind, own).is_some()
    }

    fn set_catch_syscalls(&mut self, on: bool, numbers: &[u64]) {
        use ulpf_stub_handlers::syscalls::{catch, sites};
        // A patched site would make the call without a word.
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
            // Dispositions belong to the program's task: a resting thread of it does the calls, one that
            // waits in a system call when it makes that again.
            kernel::REFRESH.store(true, SeqCst);
            self.kick_system_calls();
        }
    }

    fn resume(&mut self, action: &dyn Fn(Tid) -> Resume) {
        self.settle_shadows();
        self.commit_watches();
        self.world.rest().guards().resumed();
        self.running = true;
        for t in g().threads.iter() {
            t.ordered.store(true, SeqCst);
        }
        // A vfork child of nobody's interest goes on; what its parent has not reported yet waits with it.
        let how = |t: &Thread| match parked::event(t) {
            _ if t.is_debugged() => action(t.tid()),
            Event::Vforked { parent } if action(parent) == Resume::Hold => Resume::Hold,
            _ => Resume::Continue { signal: None },
        };
        let mut pending = false;
        for t in g().threads.iter() {
            self.forget_stale_breakpoint(t);
            let how = how(t);
            // It was stepped, and another thread's stop was told of first. Now nobody asks any more.
            if parked::event(t) == Event::Stepped
                && matches!(how, Resume::Continue { .. })
                && let Some(parked) = Parked::of(t)
            {
                parked.set_event(Event::None);
            }
            t.hold.store(how == Resume::Hold, SeqCst);
            // Whom nobody debugs has nothing to report (see `find_stop`) but that it is there.
            let reports = t.is_debugged() || matches!(parked::event(t), Event::Vforked { .. });
            pending |= reports && has_met(t);
        }
        if pending {
            notify();
            return; // reported by the main loop before anything runs
        }
        self.world.goes_on();
        for t in g().threads.iter() {
            let how = how(t);
            // One that was let go a moment ago may have met something already.
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

    fn follow(&mut self, what: &[u8]) {
        follow::set(what);
    }

    fn release_child(&mut self, child: Tid) {
        follow::release_child(child);
    }

    fn adopt_child(&mut self, child: Tid, yes: bool) -> bool {
        follow::adopt_child(child, yes)
    }

    fn exec_word(&mut self, word: &[u8]) {
        Control::exec_word(self, word);
    }

    fn detach(&mut self) {
        if self.detached {
            return;
        }
        // Requests first: their threads hold half-done work.
        self.running = true;
        g().threads.iter().for_each(|t| t.hold.store(false, SeqCst));
        loop {
            self.serve();
            if self.holder.is_none() && !g().threads.iter().any(|t| t.state() == State::Requesting)
            {
                break;
            }
            if reader::program_is_dead() {
                return;
            }
            pause::nap();
        }
        if !self.world.stop(None) {
            return;
        }
        self.settle_shadows();
        for b in self.world.rest().tables_mut().breakpoints.drain() {
            let _ = text::restore(b.addr, b.original);
        }
        self.drop_all_watches();
        self.tell_at_once();
        self.sites.remove_all(self.world.rest());
        self.patches.disable(self.world.rest());
        self.detached = true;
        follow::release_everybody();
        leaving::begin_leaving();
        for t in g().threads.iter() {
            t.leaving.store(true, SeqCst);
            world::pull_out(t);
        }
        for t in g().threads.iter() {
            if let Some(parked) = Parked::of(t) {
                parked.set_event(Event::None);
            }
            t.go.store(1, SeqCst);
            futex_wake(&t.go);
        }
    }

    fn kill(&mut self) {
        // SAFETY: ends the program.
        let _ = unsafe { sys!(k::__NR_kill, self.pid(), 9) };
    }

    fn monitor(&mut self, command: &str, out: &mut dyn core::fmt::Write) -> bool {
        monitor::run(self, command, out)
    }
}
