//! Polls briefly for an answer that comes within microseconds. Sleeping and waking takes longer than that, and GDB
//! waits for each answer: several at each stop, and one for each of its watches.
#![forbid(unsafe_code)]

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::OnceLock;
use std::task::Poll;
use std::time::{Duration, Instant};

/// Polling time. GDB needs about as long between two packets of a stop; a sleep and a wake-up take a third of it.
const TIMEOUT: Duration = Duration::from_micros(60);

/// Polling is free only if it takes no processor from another thread.
fn has_several_processors() -> bool {
    static SEVERAL: OnceLock<bool> = OnceLock::new();
    *SEVERAL.get_or_init(|| std::thread::available_parallelism().is_ok_and(|n| n.get() > 1))
}

/// Polls `future` until it is ready or `TIMEOUT` is over. In the second case it is dropped, so it must be cancel-safe.
pub async fn soon<F: Future>(future: F) -> Option<F::Output> {
    if !has_several_processors() {
        return None;
    }
    let mut future = pin!(future);
    let begun = Instant::now();
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending if begun.elapsed() >= TIMEOUT => Poll::Ready(None),
        Poll::Pending => {
            // The runtime polls the descriptors between two polls of this future.
            context.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await
}
