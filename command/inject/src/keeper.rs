//! When `ulpf` is killed: a process beside it takes the last of ours out of the programs.
//!
//! ```text
//!   ulpf ── + PID ARGS STUB, - PID ──▶ keeper      lines on a pipe; when ulpf ends, the pipe does
//!     ╳ killed                           │
//!   stub: lets go of the program, ends   └─▶ waits for that, then as after a detach (`remains`)
//! ```
//! It is `ulpf` itself, executed anew: what it holds of `ulpf` is that pipe alone, so that everything else ends when `ulpf`
//! does. It has a process group of its own, which no key of a terminal reaches. A session that ends in order takes its program
//! off the list, and an empty list ends the keeper (`kept`).
#![forbid(unsafe_code)]

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use ulpf_host::foreign::numbers::Process;

/// The first argument of a keeper.
pub const WORD: &str = "__keeper";

/// This program knows [`WORD`].
static ENABLED: AtomicBool = AtomicBool::new(false);
static KEEPER: Mutex<Keeper> = Mutex::new(Keeper::None);

enum Keeper {
    None,
    Listens(ChildStdin),
    /// It could not be started, or has been killed: everything is as without one.
    Failed,
}

/// This program is a keeper (`kept`) when its first argument is [`WORD`].
pub fn enable() {
    ENABLED.store(true, Relaxed);
}

/// Starts the keeper of this process, unless it runs.
pub(crate) fn begin() {
    if !ENABLED.load(Relaxed) {
        return;
    }
    let mut keeper = KEEPER.lock().unwrap_or_else(PoisonError::into_inner);
    if matches!(*keeper, Keeper::None) {
        *keeper = start().map_or(Keeper::Failed, Keeper::Listens);
    }
}

fn start() -> Option<ChildStdin> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("ulpf").arg(WORD).env_clear().current_dir("/");
    command.stdin(Stdio::piped());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.process_group(0).spawn().ok()?.stdin.take()
}

/// A stub is in this program from now on, with its boot block at `args`: to be told before the program's threads go on.
pub(crate) fn note(pid: i32, stub_pid: i32, args: u64) {
    begin();
    tell(&format!("+ {pid} {args} {stub_pid}\n"));
}

/// Nothing of ours is in it any more.
pub(crate) fn forget(process: &Process) {
    tell(&format!("- {}\n", process.pid));
}

fn tell(line: &str) {
    let mut keeper = KEEPER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Keeper::Listens(to) = &mut *keeper
        && to.write_all(line.as_bytes()).is_err()
    {
        *keeper = Keeper::Failed;
    }
}
