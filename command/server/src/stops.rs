//! Non-stop mode: stops that the debugger has not acknowledged yet (`non_stop` reports them).
#![forbid(unsafe_code)]

use std::collections::VecDeque;

/// Limit: more than all threads of all processes together can report.
const MOST: usize = 1 << 17;

/// Stops that the debugger has not acknowledged yet.
#[derive(Default)]
pub struct Stops {
    pub on: bool,
    /// The debugger has not yet asked which threads are stopped.
    pub connects: bool,
    /// Process numbers and stop replies.
    pub queue: VecDeque<(i32, Vec<u8>)>,
    /// The first stop has been sent.
    pub sent: bool,
}

impl Stops {
    /// Queues a stop. If the queue is full (a stub invents stops), the stop is dropped.
    pub fn push(&mut self, number: i32, stop: Vec<u8>) {
        if self.queue.len() < MOST {
            self.queue.push_back((number, stop));
        }
    }

    /// Drops the stops of a process that the debugger has detached or killed. A stop that was sent stays until it is
    /// acknowledged.
    pub fn forget(&mut self, number: i32) {
        let mut first = self.sent;
        self.queue
            .retain(|stop| std::mem::take(&mut first) || stop.0 != number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_stays_until_it_is_answered() {
        let mut stops = Stops {
            sent: true,
            ..Stops::default()
        };
        for (number, stop) in [(1, "a"), (1, "b"), (2, "c")] {
            stops.queue.push_back((number, stop.into()));
        }
        stops.forget(1);
        let left: Vec<i32> = stops.queue.iter().map(|s| s.0).collect();
        assert_eq!(left, [1, 2]);
        stops.sent = false;
        stops.forget(1);
        assert_eq!(stops.queue.len(), 1);
    }
}
