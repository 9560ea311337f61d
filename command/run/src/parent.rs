//! A parent whose fork has not returned yet, because its child is followed.
//!
//! ```text
//!   parent   rests (S) ───── awake in our code (R) ──────▶ returns from fork
//!   child    rests (S) ───────────── runs ────────────────▶
//! ```
//! Each may check whether the other sleeps (/proc/PID/stat), and send it a signal that is meant to end the call in
//! which it sleeps. So neither sleeps in our code while the other runs.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use ulpf_host::process::Status;

/// Time limit for the child to run: it may wait for the parent.
pub const LONGEST_FORK: Duration = Duration::from_secs(5);
/// A thread that resumes does so within microseconds.
const LONGEST_WAKE: Duration = Duration::from_millis(200);

/// A parent that waits in fork; it returns from fork when this is dropped.
pub struct Parent {
    /// Channel to its stub.
    stub: UnixStream,
    /// The process, and its thread that has forked.
    thread: (i32, i32),
    /// Channel to the task that keeps it stopped.
    goes_on: Option<oneshot::Sender<()>>,
}

impl Parent {
    /// Also returns the receiver that the parent's task waits for before it resumes the parent.
    pub fn new(stub: UnixStream, thread: (i32, i32)) -> (Parent, oneshot::Receiver<()>) {
        let (goes_on, heard) = oneshot::channel();
        let parent = Parent {
            stub,
            thread,
            goes_on: Some(goes_on),
        };
        (parent, heard)
    }

    /// Returns when the parent is awake.
    pub async fn wake(&mut self) {
        let resting = Sleep::of(self.thread);
        self.hold(true);
        if let Some(goes_on) = self.goes_on.take() {
            let _ = goes_on.send(());
        }
        until_left(self.thread, resting, LONGEST_WAKE).await;
    }

    /// The stub may be gone, so errors are ignored.
    fn hold(&mut self, yes: bool) {
        let word = format!("vUlpfForkHold;{}", u8::from(yes));
        let _ = self.stub.write_all(&ulpf_rsp::frame(word.as_bytes()));
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        self.hold(false);
    }
}

/// One sleep of a thread, identified by the number of its sleeps so far.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Sleep(Option<i32>);

impl Sleep {
    /// The sleep of a process's thread; `None` if it does not sleep.
    pub fn of((pid, tid): (i32, i32)) -> Option<Sleep> {
        let status = Status::of_thread(pid, tid).ok()?;
        (status.state() == 'S').then(|| Sleep(status.sleeps()))
    }
}

/// Waits until a thread has left the given sleep, if there is one.
pub async fn until_left(thread: (i32, i32), sleep: Option<Sleep>, longest: Duration) {
    /// Mostly a few checks are enough.
    const AT_ONCE: u32 = 20;
    let end = Instant::now() + longest;
    let mut looks = 0;
    while sleep.is_some() && Sleep::of(thread) == sleep && Instant::now() < end {
        looks += 1;
        match looks < AT_ONCE {
            true => tokio::task::yield_now().await,
            false => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    }
}
