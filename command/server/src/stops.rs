//! Non-stop mode: what the debugger has not taken note of yet (`non_stop` says how it is told).
#![forbid(unsafe_code)]

use std::collections::VecDeque;

/// More than threads of all processes together can have to tell.
const MOST: usize = 1 << 17;

/// What the debugger has not taken note of yet.
#[derive(Default)]
pub struct Stops {
    pub on: bool,
    /// The debugger has not asked yet which threads are stopped.
    pub connects: bool,
    /// Processes, and what there is to say.
    pub queue: VecDeque<(i32, Vec<u8>)>,
    /// The first one has been sent.
    pub sent: bool,
}

impl Stops {
    /// One more. A stub that invents stops faster than a debugger takes note of them is not heard.
    pub fn push(&mut self, number: i32, stop: Vec<u8>) {
        if self.queue.len() < MOST {
            self.queue.push_back((number, stop));
        }
    }

    /// Nothing else is to be said of a process that the debugger is rid of.
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
