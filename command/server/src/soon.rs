//! Waiting for somebody who answers within microseconds. To go to sleep and be woken again takes longer than that, and
//! GDB waits for each of its answers, several a stop and one for each of its watches.
#![forbid(unsafe_code)]

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::OnceLock;
use std::task::Poll;
use std::time::{Duration, Instant};

/// What GDB needs between two packets of a stop, as a rule; about three times as long as a sleep and a wake-up.
const PATIENCE: Duration = Duration::from_micros(60);

/// Waiting awake takes a processor from nobody.
fn has_several_processors() -> bool {
    static SEVERAL: OnceLock<bool> = OnceLock::new();
    *SEVERAL.get_or_init(|| std::thread::available_parallelism().is_ok_and(|n| n.get() > 1))
}

/// What `future` comes to, if that is soon; it is asked again and again. Otherwise it is dropped, so it must be safe
/// to cancel.
pub async fn soon<F: Future>(future: F) -> Option<F::Output> {
    if !has_several_processors() {
        return None;
    }
    let mut future = pin!(future);
    let begun = Instant::now();
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending if begun.elapsed() >= PATIENCE => Poll::Ready(None),
        Poll::Pending => {
            // The runtime looks at the descriptors in between.
            context.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await
}
