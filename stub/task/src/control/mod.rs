//! The stub's own task: its main loop, run control, and what handlers cannot do themselves.
//!
//! Everything that changes shared structures (watches, guards, breakpoints) happens here, with all program threads
//! stopped. A program thread that needs such a change (fork, munmap of guarded memory, a step with an open page) asks
//! with a `Request`. The loop parks the others, prepares, lets that one thread go on alone, and cleans up at its
//! `Request::End`.

mod adopt;
mod allocator;
mod annotations;
mod backend;
mod breakpoints;
mod check;
mod check_named;
mod classes;
mod code_caves;
mod collector;
mod conditions;
pub mod confine;
mod disabled;
mod edits;
mod entrances;
mod filters;
mod follow;
mod functions;
mod generated;
mod glibc;
mod gs;
pub mod heap;
mod inferior;
mod last;
mod last_writer;
mod leaks;
pub mod left;
mod limits;
mod monitor;
mod non_stop;
pub mod notices;
mod old_blocks;
mod out_of_band;
mod own_functions;
mod parked;
mod patches;
mod paths;
mod pause;
mod perf;
mod placement;
mod placer;
mod places;
mod private;
mod ranges;
mod reader;
mod replies;
mod requests;
pub mod rescue;
mod sequences;
mod sites;
mod slots;
mod socket;
mod stops;
pub mod text;
mod unmapped;
mod unwind;
mod watch_table;
mod watchdog;
mod watches;
mod world;

use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::*;

use linux_raw_sys::general as k;
use ulpf_engine::cpu::Gprs;
use ulpf_lib::boot::{BOOT_LAUNCHED, BOOT_NO_PATCH, BOOT_PLACE_GUARD, BOOT_PLACE_REGISTER};
use ulpf_lib::staged::StagedWatches;
use ulpf_lib::sys;

use crate::gdb::GdbSession;
use crate::inferior::{Inferior, Refusal, Tid};
use ulpf_lib::command::Placement;
use ulpf_stub_handlers::global::g;
use ulpf_stub_handlers::locks;
use ulpf_stub_handlers::runtime::events::Request;
use ulpf_stub_handlers::runtime::robust;
use ulpf_stub_handlers::runtime::thread::Thread;

pub struct Control {
    fd: i32,
    pub(crate) world: world::World,
    staged: StagedWatches,
    placement: placer::Placer,
    /// The debugger has let the program run.
    running: bool,
    interrupt: bool,
    /// Threads stop and go on one by one (see `non_stop.rs`); then `running` is always true.
    non_stop: bool,
    /// The debugger knows that no thread runs.
    idle_reported: bool,
    /// Thread that the last stop was about.
    current: Tid,
    /// Its index in the table: the threads behind it are asked first for the next stop.
    turn: u32,
    /// That of the thread whose request was served last.
    served: u32,
    looks: pause::Looks,
    /// The program thread that runs alone after a `…Begin`.
    holder: Option<(&'static Thread, Request)>,
    /// Pages that the holder has requested since, because its step met another guarded page.
    opened_since: Vec<(u64, u64)>,
    /// Registers shown for threads that are stopped in a system call: (thread, as they are, as shown).
    shadows: Vec<(Tid, Gprs, Gprs)>,
    last_refusal: Option<Refusal>,
    notices: notices::Notices,
    unmapped: unmapped::Unmapped,
    /// Sites were patched until a system call was to be caught.
    patched_before: bool,
    reported: [bool; limits::COUNT],
    heap: heap::Heap,
    check: check::Check,
    /// The program's own descriptions of its memory.
    annotations: annotations::Annotations,
    filters: filters::ByRange,
    conditions: conditions::Conditions,
    out_of_band: out_of_band::OutOfBand,
    disabled: disabled::Disabled,
    /// Since the holder went on alone.
    holding: Option<watchdog::Watchdog>,
    /// A detach has begun: requests to the command get no answer.
    leaving: bool,
    detached: bool,
    /// This task has rights that a thread of the program does not have.
    keeps_rights: bool,
    exec: follow::Exec,
    edits: edits::Edits,
    paths: paths::Paths,
    sections: sequences::Sections,
}

const KEEPS_RIGHTS: &str = "ulpf: the program has given up rights, and ulpf's own task could not do the same: it leaves.\n";

/// Nanoseconds after a resume in which no thread reads from the server. To wake the reader and to send it back to sleep
/// takes longer than many a program needs until its next stop.
const UNHEARD: i64 = 2_000_000;
/// The server is read after this many events of the program at the latest.
const MOST_UNHEARD: u32 = 8;

/// From now on this task notices the program's end, and reads the command at the other end of `fd`.
///
/// # Errors
/// ESRCH: the program has ended. Others: a descriptor or a thread cannot be had.
pub fn listen(fd: i32) -> Result<(), sys::Errno> {
    // SAFETY: a descriptor for the program's end.
    let pidfd = unsafe { sys!(k::__NR_pidfd_open, g().pid.load(Relaxed), 0) }?;
    reader::start(fd, pidfd as i32)
}

/// Milliseconds that a thread has for its entry into the stub after the command was killed.
const LIMIT_OF_ENTRY: u64 = 3000;

/// Runs until the program ends or is left alone (`true`).
pub fn run(fd: i32, flags: u32, ready: impl FnOnce()) -> bool {
    ulpf_stub_handlers::say::task_tells(notices::tell);
    let pid = g().pid.load(Relaxed);
    g().debugger.store(true, SeqCst);
    ready();
    let mut c = Control {
        fd,
        world: world::World::default(),
        staged: StagedWatches::new(),
        placement: placer::Placer::default(),
        running: true,
        interrupt: true,
        non_stop: false,
        idle_reported: true,
        current: pid,
        turn: 0,
        served: 0,
        looks: pause::Looks::default(),
        holder: None,
        opened_since: Vec::new(),
        shadows: Vec::new(),
        last_refusal: None,
        notices: Default::default(),
        unmapped: Default::default(),
        patched_before: false,
        reported: [false; limits::COUNT],
        heap: heap::Heap::default(),
        check: check::Check::default(),
        annotations: annotations::Annotations::default(),
        filters: filters::ByRange::default(),
        conditions: conditions::Conditions::default(),
        out_of_band: out_of_band::OutOfBand::default(),
        disabled: disabled::Disabled::default(),
        holding: None,
        leaving: false,
        detached: false,
        keeps_rights: false,
        exec: follow::Exec::None,
        edits: edits::Edits::new(),
        paths: paths::Paths::default(),
        sections: sequences::Sections::default(),
    };
    rescue::of(&mut c);
    c.placement.wanted = match flags & (BOOT_PLACE_GUARD | BOOT_PLACE_REGISTER) {
        BOOT_PLACE_GUARD => Placement::Guard,
        BOOT_PLACE_REGISTER => Placement::Register,
        _ => Placement::Auto,
    };
    if flags & BOOT_NO_PATCH != 0 {
        ulpf_stub_handlers::syscalls::sites::ENABLED.store(false, SeqCst);
        ulpf_stub_handlers::patches::ENABLED.store(false, SeqCst);
    }
    c.wait_for_boot();
    c.world.stop(None);
    backend::choose(flags, c.world.stopped());
    let mut session = GdbSession::new(pid);
    c.first_stop();
    c.main_loop(&mut session, flags);
    if !c.detached {
        c.tell(&mut session); // of what has happened in the program's last moments
        c.program_is_gone();
        if world::others_live_on() {
            // Vfork children, which may be parked. They go on as after a failure of this task.
            c.leave_unserved();
        }
    }
    c.detached
}

impl Control {
    /// All threads come to us with the park signal as the command detaches from them. If the command is killed before
    /// that, the threads that enter us come by themselves (`home.rs` of the handlers). They are waited for, because no
    /// task would release a thread that comes later; but not for long, because the command may have brought them home.
    fn wait_for_boot(&mut self) {
        let mut closed = None;
        loop {
            let seen = g().event.load(SeqCst);
            let mut all = 0;
            let mut stopped = 0;
            for t in g().threads.iter() {
                all += 1;
                stopped += t.is_stopped() as u32;
            }
            if (all > 0 && all == stopped) || reader::program_is_dead() {
                return;
            }
            if reader::CLOSED.load(SeqCst) {
                let now = pause::clock();
                if now - *closed.get_or_insert(now) > LIMIT_OF_ENTRY {
                    return;
                }
            }
            pause::wait_a_little(seen);
        }
    }

    fn first_stop(&mut self) {
        self.running = false;
        self.interrupt = false;
    }

    fn main_loop(&mut self, session: &mut GdbSession, flags: u32) {
        let mut buf = vec![0u8; 64 << 10];
        let mut unheard = 0u32;
        loop {
            let seen = g().event.load(SeqCst);
            if reader::program_is_dead() {
                return;
            }
            let stop_first = self.stop_comes_first();
            let more = !stop_first && self.serve();
            if self.keeps_rights {
                self.notices.push(KEEPS_RIGHTS.into());
                self.tell(session);
                self.detach(true);
                return;
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
                let fd = self.fd;
                session.catch_up(self, &mut |b: &[u8]| socket::send_all(fd, b));
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
                self.end_pause();
                // Stopped: only packets of the debugger can arrive now.
                if !self.running {
                    reader::listen(false);
                    unheard = 0;
                }
                while !self.running && !reader::CLOSED.load(SeqCst) && !reader::DEAD.load(SeqCst) {
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
                if reader::CLOSED.load(SeqCst) {
                    if flags & BOOT_LAUNCHED != 0 {
                        self.kill();
                    } else {
                        self.detach(true);
                    }
                    return;
                }
                if self.running
                    && let Some(stop) = self.find_stop()
                {
                    if self.non_stop {
                        self.one_has_stopped(session, stop);
                        continue;
                    }
                    self.world.stop(None);
                    let stop = self.choose(stop);
                    // No other thread's store comes between the hit and its report.
                    let of = g().threads.iter().find(|t| t.tid() == stop.tid);
                    of.into_iter().for_each(locks::give_back_kept);
                    self.tell(session);
                    self.running = false;
                    self.interrupt = false;
                    self.current = stop.tid;
                    let fd = self.fd;
                    session.stopped(self, stop, &mut |b: &[u8]| socket::send_all(fd, b));
                    continue;
                }
                if self.none_is_left() {
                    if !self.non_stop {
                        self.world.stop(None);
                        self.tell(session);
                        (self.running, self.interrupt) = (false, false);
                    }
                    let fd = self.fd;
                    session.no_resumed(self, &mut |b: &[u8]| socket::send_all(fd, b));
                    continue;
                }
                if stop_first {
                    continue;
                }
            }
            let pause = g().in_exec.load(SeqCst) != 0;
            if pause && world::exec_happened() {
                return;
            }
            if let (Some((t, what)), Some(dog)) = (self.holder, &mut self.holding)
                && dog.expired()
            {
                watchdog::holder_runs(t, what);
            }
            unheard = unheard.saturating_add(1);
            if unheard > MOST_UNHEARD {
                reader::listen(true);
            }
            let looked = self.looks.look(seen);
            let renew = last_writer::renew_stamps();
            if g().event.load(SeqCst) == seen && !more && !looked {
                if !reader::listens() {
                    if pause::wait(seen, Some(UNHEARD)) {
                        reader::listen(true);
                    }
                } else if pause {
                    pause::wait(seen, Some(5_000_000));
                } else if self.holder.is_some() {
                    pause::wait(seen, Some(1_000_000_000));
                } else {
                    pause::wait(seen, renew);
                }
            }
        }
    }

    /// Sends pending console output, while the debugger waits for a stop.
    fn tell(&mut self, session: &mut GdbSession) {
        if self.running {
            self.note_limits();
        }
        self.tell_failures();
        if self.running {
            let fd = self.fd;
            for text in self.notices.take() {
                session.console(&text, &mut |b: &[u8]| socket::send_all(fd, b));
            }
        }
    }

    fn note_limits(&mut self) {
        for (reported, (met, text)) in self.reported.iter_mut().zip(&limits::ALL) {
            if !*reported && met.load(SeqCst) {
                *reported = true;
                self.notices.push((*text).into());
            }
        }
    }

    /// The program has ended, or has executed another one: processes that share its memory may wait for its locks.
    fn program_is_gone(&self) {
        for _ in 0..1000 {
            if reader::program_is_dead()
                || self.exec == follow::Exec::Over
                || world::exec_happened()
            {
                robust::exit_all(&text::read);
                return;
            }
            pause::sleep(); // it is being killed
        }
    }

    /// While a thread waits to exec, the program runs from the debugger's point of view, and only a few packets may
    /// come. The command's reply is among them.
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

    fn thread(&self, tid: Tid) -> Option<&'static Thread> {
        g().threads.find(tid).filter(|t| t.is_debugged())
    }

    fn is_held(&self, tid: Tid) -> bool {
        self.thread(tid).is_some_and(|t| t.hold.load(SeqCst))
    }
}
