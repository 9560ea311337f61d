//! Asynchronous access to a program with the stub inside.
//!
//! Ownership: one task (started here) waits for the program's end, and only this task reaps it; other code waits
//! through [`Exit`]. The control stream belongs to the owner of the session: the server relays it, `ulpf run` uses it.
#![forbid(unsafe_code)]

pub mod follow;

use crate::remains::Remains;
use crate::settings::Settings;
use crate::{Injected, Launch, StartError};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::sync::watch;
use ulpf_area::SharedArea;
use ulpf_host::foreign::numbers::Process;
use ulpf_host::{process, sys};

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Exited(i32),
    /// Linux signal number.
    Killed(i32),
    /// It has ended, but only its parent can read the status (attached programs on Linux before 6.15).
    Unknown,
}

impl Ending {
    fn from_wait(status: i32) -> Ending {
        match status & 0x7f {
            0 => Ending::Exited((status >> 8) & 0xff),
            signal => Ending::Killed(signal),
        }
    }
}

/// Reports when and how the program ended. Clones wait for the same program.
#[derive(Clone, Debug)]
pub struct Exit(watch::Receiver<Option<Ending>>);

impl Exit {
    /// Completes when the program has ended (at once if it has already).
    pub async fn wait(&mut self) -> Ending {
        match self.0.wait_for(Option::is_some).await {
            Ok(ending) => ending.unwrap_or(Ending::Unknown),
            Err(_) => Ending::Unknown,
        }
    }
    /// How the program has ended, if it has.
    pub fn now(&self) -> Option<Ending> {
        *self.0.borrow()
    }
}

/// A running session.
#[derive(Debug)]
pub struct Inferior {
    /// The program.
    pub pid: i32,
    /// The stub's own task.
    pub stub_pid: i32,
    /// Started by us rather than attached to.
    pub launched: bool,
    /// The user's settings for it.
    pub settings: Settings,
    /// The remote serial protocol in no-ack mode; [`crate::client::Client`] speaks it.
    pub control: UnixStream,
    /// The area that it shares with the stub.
    pub shared: SharedArea,
    /// Reports its end.
    pub exit: Exit,
    /// Warnings for the user; full sentences.
    pub warnings: Vec<String>,
    /// Remains of the stub that must be removed after a detach ([`leave_nothing`]).
    pub remains: Remains,
    process: Process,
}

/// Starts a program, stopped before its first instruction.
pub async fn start(spec: Launch) -> Result<Inferior, StartError> {
    blocking(move || crate::launch(&spec)).await
}

/// Attaches to a running program; all its threads stop where they are.
pub async fn attach(pid: i32, settings: Settings) -> Result<Inferior, StartError> {
    blocking(move || crate::attach(pid, settings)).await
}

/// Takes over a forked child that waits for it; it is stopped where it returns from fork.
pub async fn take_child(child: crate::follow::Child) -> Result<Inferior, StartError> {
    blocking(move || crate::follow::child(child)).await
}

/// After a detach: removes the stub's remains from the program. `control` is our end of the channel to the stub.
/// Returns what failed, as a full sentence.
pub async fn leave_nothing(
    process: &Process,
    remains: Remains,
    control: &UnixStream,
) -> Option<String> {
    let stub = control.as_fd().try_clone_to_owned();
    let of = process.clone();
    let work = move || stub.and_then(|stub| remains.take_away(&of, &stub));
    let done = tokio::task::spawn_blocking(work).await;
    let error = done.map_err(io::Error::other).and_then(|r| r).err()?;
    (!process.has_ended()).then(|| {
        format!(
            "some memory of ulpf stays in process {}, which does not use it: {error}.",
            process.pid
        )
    })
}

/// Wakes a program that a signal has stopped: its threads reach the stub only when they run, and stop there at once.
/// For a program that is about to be left, which is stopped again afterwards. Pending while it runs.
pub async fn wake(process: &Process) {
    /// Time in which the stub sends its signals to the threads.
    const PAUSE: Duration = Duration::from_millis(100);
    loop {
        tokio::time::sleep(PAUSE).await;
        if process::Status::of(process.pid).is_ok_and(|s| s.state() == 'T') {
            let _ = process.signal(libc::SIGCONT);
            return;
        }
    }
}

/// A program that a signal had stopped and that was woken to be left ([`wake`]), if it was. Dropped, it is stopped again.
#[derive(Debug, Default)]
pub struct Woken(Option<Process>);

impl Woken {
    pub fn note(&mut self, process: &Process) {
        self.0 = Some(process.clone());
    }
}

impl Drop for Woken {
    fn drop(&mut self) {
        if let Some(process) = &self.0 {
            let _ = process.signal(libc::SIGSTOP);
        }
    }
}

/// Leaves a program by `work`, also if a signal has stopped it.
pub async fn waking<T>(process: &Process, woken: &mut Woken, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    loop {
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = wake(process) => woken.note(process),
        }
    }
}

async fn blocking(
    work: impl FnOnce() -> Result<Injected, StartError> + Send + 'static,
) -> Result<Inferior, StartError> {
    let injected = tokio::task::spawn_blocking(work)
        .await
        .map_err(|e| StartError::step("start the program", io::Error::other(e)))??;
    Inferior::new(injected).map_err(|e| StartError::step("follow the program", e))
}

impl Exit {
    /// Waits for the end of a process.
    pub fn of(process: &Process, launched: bool) -> io::Result<Exit> {
        let (tell, exit) = watch::channel(None);
        let poll = sys::watch_readable(process.pidfd().try_clone_to_owned()?)?;
        let pid = process.pid;
        tokio::spawn(async move {
            let ended = poll.readable().await;
            drop(ended);
            let _ = tell.send(Some(ending(pid, launched, poll.get_ref()).await));
        });
        Ok(Exit(exit))
    }
}

impl Inferior {
    fn new(injected: Injected) -> io::Result<Inferior> {
        let Injected {
            process,
            stub_pid,
            control,
            shared,
            launched,
            settings,
            warnings,
            remains,
        } = injected;
        control.set_nonblocking(true)?;
        let exit = Exit::of(&process, launched)?;
        Ok(Inferior {
            pid: process.pid,
            stub_pid,
            launched,
            settings,
            control: UnixStream::from_std(control)?,
            shared,
            exit,
            warnings,
            remains,
            process,
        })
    }

    /// A session for a program that the same process has executed; `exit` still waits for the process.
    pub(crate) fn continued(injected: Injected, exit: Exit) -> io::Result<Inferior> {
        injected.control.set_nonblocking(true)?;
        Ok(Inferior {
            pid: injected.process.pid,
            stub_pid: injected.stub_pid,
            launched: injected.launched,
            settings: injected.settings,
            control: UnixStream::from_std(injected.control)?,
            shared: injected.shared,
            exit,
            warnings: injected.warnings,
            remains: injected.remains,
            process: injected.process,
        })
    }

    /// The program's process, safe against reuse of its number.
    pub fn process(&self) -> Process {
        self.process.clone()
    }
}

async fn ending(pid: i32, launched: bool, pidfd: &OwnedFd) -> Ending {
    if launched {
        for _ in 0..200 {
            match sys::try_reap(pid) {
                Ok(Some(status)) => return Ending::from_wait(status),
                // Readable a moment before it can be reaped.
                Ok(None) => tokio::time::sleep(Duration::from_millis(1)).await,
                Err(_) => break,
            }
        }
        return Ending::Unknown;
    }
    // The process may be no zombie any more, and its status not recorded yet.
    for _ in 0..50 {
        let zombie = process::zombie_status(pid);
        if let Some(status) = zombie.or_else(|| sys::pidfd_exit_status(pidfd.as_fd())) {
            return Ending::from_wait(status);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ending::Unknown
}
