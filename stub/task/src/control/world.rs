//! Stopping and releasing the program's threads.

use core::sync::atomic::Ordering::*;

use linux_raw_sys::general as k;
use ulpf_lib::boot::PARK_SIGNAL;
use ulpf_lib::mapping::mappings;
use ulpf_lib::sync::stop_the_world;
use ulpf_lib::sys;

use ulpf_stub_handlers::stopped::Stopped;

use super::parked::Parked;
use super::text;
use super::watchdog::Watchdog;
use crate::inferior::Resume;
use ulpf_stub_handlers::global::{g, machine};
use ulpf_stub_handlers::runtime::park::{Futex, order_signal};
use ulpf_stub_handlers::runtime::thread::{State, Thread};

/// After a successful exec the process runs another image, and we are alone in the old one.
pub fn exec_happened() -> bool {
    use core::fmt::Write;
    let mut path = alloc::string::String::new();
    let _ = write!(path, "/proc/{}/maps\0", g().pid.load(Relaxed));
    let Some(maps) = crate::files::read_file(&path) else {
        return false;
    };
    !maps.is_empty() && !mappings(&maps).any(|m| m.start == machine().image.0)
}

/// Sends the park signal to one thread. `false`: one is in exec, after which another program has the process's number.
pub fn send_park_signals(t: &Thread) -> bool {
    let (serial, tid) = (t.serial.load(SeqCst), t.tid());
    // A thread that is about to execute another program waits for us here (`syscalls::exec`).
    g().nudged.store(tid as u32, SeqCst);
    let may = g().in_exec.load(SeqCst) == 0 || t.tgid() != g().pid.load(Relaxed);
    if may && !matches!(t.state(), State::Dead | State::Free) {
        // SAFETY: a signal that only our handler sees.
        let sent = unsafe { sys!(k::__NR_tgkill, t.tgid(), tid, PARK_SIGNAL) };
        if sent == Err(sys::Errno(3)) {
            t.has_ended(serial); // killed without a word
        }
    }
    g().nudged.store(0, SeqCst);
    may
}

/// Returns whether a task of another process that shares our memory is a zombie, or gone: it may have been killed.
pub fn died(t: &Thread) -> bool {
    use core::fmt::Write;
    let serial = t.serial.load(SeqCst);
    if t.tgid() == g().pid.load(Relaxed) || t.tid() == 0 {
        return false;
    }
    let mut path = alloc::string::String::new();
    let _ = write!(path, "/proc/{}/task/{}/stat\0", t.tgid(), t.tid());
    let stat = crate::files::read_file(&path).unwrap_or_default();
    let state = stat
        .iter()
        .rposition(|b| *b == b')')
        .and_then(|at| stat.get(at + 2));
    let dead = matches!(state, Some(b'Z' | b'X'));
    if dead {
        t.has_ended(serial);
    }
    dead
}

/// The program has ended: marks its threads. Returns whether others live on in its memory (vfork children).
pub fn others_live_on() -> bool {
    let pid = g().pid.load(Relaxed);
    let mut others = false;
    for t in g().threads.iter() {
        match t.tgid() == pid {
            true => t.has_ended(t.serial.load(SeqCst)),
            false => others |= !died(t),
        }
    }
    others
}

/// Owns the stop-the-world token.
#[derive(Default)]
pub struct World {
    stopped: Option<Stopped>,
    /// It was stopped by [`World::stopped`] alone.
    halted: bool,
    /// Number of threads that had to be signalled when it was stopped.
    pub signalled: u64,
}

impl World {
    /// Waits until every thread but `except` is stopped. Threads that start meanwhile stop at once. `false`: the
    /// program has died, and nothing else lives in its memory.
    pub fn stop(&mut self, except: Option<&Thread>) -> bool {
        let signalled = stop(except);
        self.signalled = signalled.unwrap_or(0);
        let stopped = signalled.is_some();
        if stopped && self.stopped.is_none() {
            // SAFETY: as just seen; there is no other token, since `World` keeps it.
            self.stopped = Some(unsafe { Stopped::claim() });
        }
        stopped
    }

    /// Returns the token, which is needed to change what handlers read. Stops the world unless it is stopped, which it
    /// nearly always is: a debugger sends packets at a stop.
    pub fn stopped(&mut self) -> &mut Stopped {
        if self.stopped.is_none() {
            self.halted = stop(None).is_some();
        }
        // SAFETY: the world is stopped, or the program has died, and no thread reads any more.
        self.stopped
            .get_or_insert_with(|| unsafe { Stopped::claim() })
    }

    /// Returns whether it is stopped.
    pub fn is_stopped(&self) -> bool {
        self.stopped.is_some()
    }

    /// Returns whether [`World::stopped`] has stopped it since the last call of this function, and nothing else has.
    pub fn was_halted(&mut self) -> bool {
        core::mem::take(&mut self.halted)
    }

    /// Ends the stop: threads that are not held may run from here on.
    pub fn goes_on(&mut self) {
        (self.stopped, self.halted) = (None, false);
        text::serialize();
        g().world.store(0, SeqCst);
    }
}

/// See [`World::stopped`]. Returns the number of threads that had to be signalled.
fn stop(except: Option<&Thread>) -> Option<u64> {
    let skip = |t: &Thread| except.is_some_and(|e| core::ptr::eq(e, t));
    let mut signalled = 0;
    let mut watchdog = Watchdog::new();
    // Not all were signalled: one is in exec.
    let mut unsignalled = false;
    let look = |rounds: u32| {
        let again = core::mem::take(&mut unsignalled) || rounds.is_multiple_of(10);
        let mut pending = false;
        for t in g().threads.iter() {
            if skip(t) || t.is_stopped() {
                continue;
            }
            pending = true;
            signalled += u64::from(rounds == 0);
            // Again every 100 ms: a signal is never lost, but a thread may have died.
            if t.tid() != 0 && again && !(rounds > 0 && died(t)) {
                unsignalled |= !send_park_signals(t);
            }
        }
        if !pending {
            return Some(Some(signalled));
        }
        if g().threads.iter().next().is_none()
            || super::reader::program_is_dead() && !others_live_on()
            || unsignalled && exec_happened()
        {
            return Some(None);
        }
        if watchdog.expired() {
            let waiting = g().threads.iter().filter(|t| !skip(t) && !t.is_stopped());
            super::watchdog::threads_run(waiting, except);
        }
        None
    };
    stop_the_world::stop(&g().world, &g().event, look, super::pause::wait_a_little)
}

/// Lets one stopped thread go on as `how` says.
pub fn release(t: &Thread, how: Resume) {
    match t.state() {
        State::Parked => {
            if let Some(parked) = Parked::of(t) {
                parked.set_resume(how);
            }
            t.gate().let_go(&Futex);
        }
        // Both step once they have left the call or the request.
        State::InSyscall | State::Requesting => {
            if let Some(signal) = how.signal() {
                order_signal(t, signal);
            }
            let step = matches!(how, Resume::Step { .. } | Resume::RangeStep { .. });
            t.set_range(match how {
                Resume::RangeStep { start, end } => (start.0, end.0),
                _ => (0, 0),
            });
            let stepped = t.stepping.swap(step, SeqCst);
            // It was to step, and continues instead: the flag would be taken for the program's own.
            let untrap = stepped && !step;
            match Parked::of(t).filter(|_| untrap) {
                Some(parked) => parked.untrap(),
                None => t.untrap.store(untrap, SeqCst),
            }
        }
        _ => {}
    }
}

/// Makes a thread that is stopped inside a system call return from it and park. `false`: the call cannot be interrupted
/// (a large read, a dead disk), and the kernel may still write to the memory that the program passed to it.
#[must_use]
pub fn pull_out(t: &Thread) -> bool {
    // The parent of a vfork child returns when the child has gone, and the kernel writes nothing for it.
    let nr = t.orig_rax.load(Relaxed) as u32;
    if matches!(nr, k::__NR_vfork | k::__NR_clone | k::__NR_clone3) {
        return true;
    }
    let begun = super::pause::clock();
    let mut sent = 0;
    while t.state() == State::InSyscall {
        let seen = g().event.load(SeqCst);
        let waited = super::pause::clock() - begun;
        if waited >= sent {
            if send_park_signals(t) {
                sent = waited + BETWEEN_SIGNALS;
            } else if exec_happened() {
                return true;
            }
            // Only SIGCONT or its tracer continues it; the signals wait until then.
            if super::watchdog::is_stopped(t) {
                return true;
            }
        }
        if t.state() != State::InSyscall || super::reader::program_is_dead() {
            return true;
        }
        if waited > LONGEST_CALL {
            return false;
        }
        super::pause::wait_a_little(seen);
    }
    true
}

/// As [`pull_out`], for the last time: waits also for SIGCONT, since a call that goes on would keep our code in the
/// program. (The command sends it when it leaves.)
pub fn bring_out(t: &Thread) {
    loop {
        let _ = pull_out(t);
        let stays = || t.state() == State::InSyscall && !super::reader::program_is_dead();
        if !stays() || !super::watchdog::job_control_stops(t) {
            return;
        }
        while stays() && super::watchdog::job_control_stops(t) {
            super::pause::sleep();
        }
    }
}

/// Milliseconds.
const BETWEEN_SIGNALS: u64 = 100;
const LONGEST_CALL: u64 = 10_000;
