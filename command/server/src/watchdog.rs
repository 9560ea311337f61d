//! Timeouts for a stub that does not answer, so that it does not block the debugger. When a wait times out, the
//! debugger gets an answer that says which thread is held and why. The user can then kill the program or leave. Late
//! answers of the stub are dropped.
#![forbid(unsafe_code)]

use std::time::Duration;
use ulpf_host::process::{self, Status};

/// Time limit for a requested stop.
pub const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// Time limit for the answer to a packet. Most come within milliseconds, and GDB itself gives up after six seconds. A
/// command of the user may take longer.
pub fn timeout_of(packet: &[u8]) -> Duration {
    let long = packet.starts_with(b"qRcmd") || packet.starts_with(b"D");
    Duration::from_secs(if long { 60 } else { 5 })
}
/// Time limit for a stub to read what is sent to it.
pub const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit once the stub is known not to answer.
pub const HUNG_TIMEOUT: Duration = Duration::from_millis(500);

/// GDB caches registers that it could not read.
pub const AFTERWARDS: &str = "Registers are not known until it answers; after that, `maintenance flush register-cache` makes GDB read them again.";

/// Explains a missing answer: the states of the stub's task and the program's threads.
pub fn report(pid: i32, stub: i32, waited: Duration) -> String {
    let mut text = format!("Process {pid} has not answered for {} s", waited.as_secs());
    let mut held = Vec::new();
    if let Ok(status) = Status::of(stub)
        && let Some(why) = why(status.state(), stub)
    {
        held.push(format!("the stub's task {stub} {why}"));
    }
    for tid in process::threads(pid).unwrap_or_default() {
        let Ok(status) = Status::of_thread(pid, tid) else {
            continue;
        };
        if let Some(why) = why(status.state(), pid) {
            held.push(format!("thread {tid} ({}) {why}", status.name()));
        }
    }
    if held.len() > 8 {
        let more = held.len() - 8;
        held.truncate(8);
        held.push(format!("{more} more threads as well"));
    }
    if held.is_empty() {
        text += ", and no thread of it is stopped or stuck in the kernel";
    } else {
        text += ": ";
        text += &held.join("; ");
    }
    text + ". It can be killed (`kill`); what is asked of it again is tried again."
}

/// Why a thread in this state cannot answer.
fn why(state: char, pid: i32) -> Option<String> {
    Some(match state {
        'T' => format!("is stopped by a signal (T; `kill -CONT {pid}` lets it go on)"),
        't' => "is held by another debugger (t)".into(),
        'D' => "is in an uninterruptible wait of the kernel (D)".into(),
        'Z' | 'X' => "has ended".into(),
        _ => return None,
    })
}
