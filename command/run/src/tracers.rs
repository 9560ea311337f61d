//! Programs that trace others with ptrace(2), as debuggers and crash handlers do.
//!
//! A traced process stops for its tracer, and must neither show our code at such a stop nor wait in it. So before a
//! watched process traces another one, we release that one (`stub/handlers/src/syscalls/tracing.rs`), if the tracer may
//! trace it. Each process has a task of its own: the tracer's task asks the other process's task here.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use ulpf_host::foreign::numbers::Process;
use ulpf_host::process;
use ulpf_host::say::say;

/// Limit of the wait for a release. (The process may be stopped by a signal, and so never reach a stop of ours.)
const TIMEOUT: Duration = Duration::from_secs(5);

/// Dropped when a process has been released.
type Done = oneshot::Sender<()>;

struct Entry {
    ask: mpsc::UnboundedSender<Done>,
    /// Kept until the process's task takes it.
    asked: Option<mpsc::UnboundedReceiver<Done>>,
}

/// The watched processes, by our numbers.
static WATCHED: Mutex<BTreeMap<i32, Entry>> = Mutex::new(BTreeMap::new());

fn watched() -> MutexGuard<'static, BTreeMap<i32, Entry>> {
    WATCHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers a process as watched, though its task may start later.
pub fn expect(pid: i32) {
    let (ask, asked) = mpsc::unbounded_channel();
    let asked = Some(asked);
    watched().insert(pid, Entry { ask, asked });
}

/// Requests to release one process.
pub struct Asked {
    pid: i32,
    asked: mpsc::UnboundedReceiver<Done>,
}

impl Asked {
    pub fn of(pid: i32) -> Asked {
        let expected = watched().get_mut(&pid).and_then(|entry| entry.asked.take());
        let asked = expected.unwrap_or_else(|| {
            let (ask, asked) = mpsc::unbounded_channel();
            watched().insert(pid, Entry { ask, asked: None });
            asked
        });
        Asked { pid, asked }
    }

    /// The next request; its sender waits until the answer is dropped. Safe to cancel.
    pub async fn next(&mut self) -> Done {
        match self.asked.recv().await {
            Some(done) => done,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        watched().remove(&self.pid);
    }
}

/// The watched process that has this thread, by `tracer`'s number of it.
fn named(tracer: &Process, number: i32) -> Option<i32> {
    let depth = process::names_of(tracer.pid).ok()?.len();
    let pids: Vec<i32> = watched().keys().copied().collect();
    let others = pids.into_iter().filter(|pid| *pid != tracer.pid);
    others
        .into_iter()
        .find(|pid| process::thread_named(*pid, depth, number).is_some())
}

/// Releases the process of `number`, which a thread of `tracer` is about to trace.
pub async fn let_go(tracer: &Process, number: i32) {
    let Some(pid) = named(tracer, number) else {
        return;
    };
    // The report comes from memory that the tracer can write to, so it counts only for a tracer that may trace the
    // process.
    if !process::may_trace(tracer.pid, pid) {
        return;
    }
    let (done, is_done) = oneshot::channel();
    let asked = watched()
        .get(&pid)
        .is_some_and(|entry| entry.ask.send(done).is_ok());
    if !asked {
        return;
    }
    let by = tracer.pid;
    match tokio::time::timeout(TIMEOUT, is_done).await {
        Ok(_) => {
            say!("process {pid} is traced by process {by} (ptrace), and not watched any more.");
        }
        Err(_) => say!(
            "process {pid} is about to be traced by process {by} (ptrace) and does not come to rest: what it reports there may be ulpf's."
        ),
    }
}
