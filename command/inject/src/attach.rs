//! Attaches to a running process.

use crate::error::StartError;
use crate::image::stub_image;
use crate::injected::{Injected, finish};
use crate::load::{self, Loaded};
use crate::refuse::{self, with_errno};
use crate::remains::Remains;
use crate::settings::Settings;
use crate::{keeper, sandbox, threads};
use std::time::{Duration, Instant};
use ulpf_area::shared::Clocks;
use ulpf_host::foreign::numbers::Process;
use ulpf_host::process;
use ulpf_host::sys::Backoff;

/// Injects the stub into a running process and stops all its threads there.
pub fn attach(pid: i32, settings: Settings) -> Result<Injected, StartError> {
    keeper::begin();
    let status = refuse::attaching(pid)?;
    let stopped_before = status.is_stopping();
    let process = Process::open(pid).map_err(|e| StartError::Attach {
        pid,
        reason: with_errno(&e),
    })?;
    let since = Clocks::now();
    let flags = settings.boot_flags();
    // If the keeper fails, the attempt here reports the error.
    let loaded = match keeper::inject(&process, flags) {
        Some(handed) => Loaded {
            stub_pid: handed.stub_pid,
            control: handed.control,
            shared: handed.shared,
            remains: Remains { args: handed.args },
        },
        None => {
            take_away_what_is_left(&process);
            inject(&process, flags)?
        }
    };
    let mut warnings = Vec::new();
    // (A thread that was about to stop has done so when the injection was over.)
    if stopped_before || is_stopping(pid) {
        // Its threads can reach the stub only when they run.
        let _ = process.signal(libc::SIGCONT);
        warnings.push(format!("warning: Process {pid} was stopped (by Ctrl-Z or SIGSTOP) and has been woken with SIGCONT."));
    }
    finish(process, loaded, since, false, settings, warnings)
}

/// Whether SIGSTOP or job control has stopped a thread, or SIGSTOP is about to. (The kernel shows the state first: a
/// thread that stops in between is found by the second reading.)
fn is_stopping(pid: i32) -> bool {
    let stops = |tid: &i32| process::Status::of_thread(pid, *tid).is_ok_and(|s| s.is_stopping());
    (0..2).any(|_| process::threads(pid).is_ok_and(|tids| tids.iter().any(stops)))
}

/// Removes what a keeper that was killed has put into the program.
fn take_away_what_is_left(process: &Process) {
    /// A complete stub finds its channel closed, and lists its remains.
    const LIMIT: Duration = Duration::from_secs(5);
    let end = Instant::now() + LIMIT;
    for remains in Remains::find(process) {
        let mut backoff = Backoff::default();
        loop {
            let gone = match remains.task(process) {
                Some(_) if remains.are_listed(process) => remains.take_away_now(process).is_ok(),
                Some(_) => false,
                None => remains.unload(process).is_ok(),
            };
            if gone || Instant::now() > end {
                break;
            }
            backoff.wait();
        }
    }
}

/// Injects the stub from this process, which traces the program meanwhile.
pub(crate) fn inject(process: &Process, flags: u32) -> Result<Loaded, StartError> {
    let image = stub_image()?;
    let pid = process.pid;
    let mut threads = threads::stop_all(process)?;
    let result = refuse::class(pid).and_then(|()| {
        sandbox::permits(pid, &threads)?;
        for t in &threads {
            threads::rewind_system_call(pid, t)
                .map_err(|e| StartError::step("read the registers of the program", e))?;
        }
        load::load(pid, &mut threads, image, flags, None)
    });
    result.inspect_err(|_| threads::release(&threads))
}
