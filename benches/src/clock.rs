//! Processor time of commands, and of all that they start, as `perf stat -e task-clock` counts it.
//!
//! getrusage leaves out ulpf's own task in the program, because no process waits for it.

use anyhow::{Context, Result};
use perf_event::events::Software;
use perf_event::{Builder, Counter};

/// Counts what this thread starts from now on, each from its exec on.
pub struct Clock {
    counter: Counter,
    /// Counts nothing, and is not inherited. Without it, the kernel treats parent and child as interchangeable until the
    /// child has executed its program. It may exchange their counters when it switches between them
    /// (perf_event_context_sched_out). Then ours ends with the child, and later children are not counted.
    _not_inherited: Counter,
}

impl Clock {
    /// # Errors
    /// The kernel denies the counter (perf_event_paranoid 3, seccomp).
    pub fn begin() -> Result<Clock> {
        let mut builder = Builder::new(Software::TASK_CLOCK);
        builder.inherit(true).enable_on_exec(true);
        let none = "the kernel counts no processor time here (perf_event_open; /proc/sys/kernel/perf_event_paranoid has to be 2 or less)";
        Ok(Clock {
            _not_inherited: Builder::new(Software::DUMMY).build().context(none)?,
            counter: builder.build().context(none)?,
        })
    }

    /// Milliseconds until now.
    pub fn ms(&mut self) -> Result<f64> {
        let ns = self
            .counter
            .read()
            .context("cannot read the processor time")?;
        Ok(ns as f64 / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_command_and_what_it_starts_are_counted() {
        let Ok(mut clock) = Clock::begin() else {
            eprintln!("skipped: the kernel counts no processor time here");
            return;
        };
        let busy = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done";
        let twice = format!("sh -c '{busy}'; ({busy}) & wait");
        let spent = |clock: &mut Clock, script: &str| {
            let before = clock.ms().unwrap();
            let status = Command::new("sh").args(["-c", script]).status();
            assert!(status.unwrap().success());
            clock.ms().unwrap() - before
        };
        // Each command, not the first one only.
        for _ in 0..5 {
            let nothing = spent(&mut clock, ":");
            let much = spent(&mut clock, &twice);
            assert!(nothing > 0.0 && much > nothing, "{nothing} and {much} ms");
        }
        // This thread's own time is not in it.
        let before = clock.ms().unwrap();
        for n in 0..1_000_000 {
            std::hint::black_box(n);
        }
        assert_eq!(clock.ms().unwrap(), before);
    }
}
