//! Context of a benchmark's cases, which collects their readings.

use super::clock::Clock;
use super::programs::Programs;
use super::readings::{CLOCK, PROCESSOR, Readings};
use anyhow::Result;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Settings and results of a benchmark run.
pub struct Bench {
    pub quick: bool,
    /// Number of turns of A and B.
    pub turns: u32,
    pub programs: Programs,
    /// This very command.
    pub ulpf: PathBuf,
    /// Time limit of each command.
    pub limit: Duration,
    pub readings: Readings,
    /// Programs that were skipped, with the reason.
    pub absent: Vec<String>,
    pub verbose: bool,
}

impl Bench {
    pub fn reading(&mut self, case: &'static str, variant: &str, unit: &'static str, value: f64) {
        if self.verbose {
            eprintln!("  {case:10} {variant:48} {value:>16.3} {unit}");
        }
        self.readings.add(case, variant, unit, value);
    }

    /// Records the cost of `work`, which starts commands: wall-clock time, and processor time where the kernel counts it.
    pub fn cost<T>(
        &mut self,
        case: &'static str,
        variant: &str,
        work: impl FnOnce(&Bench) -> Result<T>,
    ) -> Result<T> {
        let clock = Clock::begin();
        let began = Instant::now();
        let done = work(self)?;
        let took = began.elapsed().as_secs_f64() * 1e3;
        self.reading(case, variant, CLOCK, took);
        match clock.and_then(|mut clock| clock.ms()) {
            Ok(ms) => self.reading(case, variant, PROCESSOR, ms),
            Err(why) => self.skip("processor time", &format!("{why:#}")),
        }
        Ok(done)
    }

    /// Says why something does not take part.
    pub fn skip(&mut self, what: &str, why: &str) {
        let text = format!("{what} is left out: {why}");
        if !self.absent.contains(&text) {
            self.absent.push(text);
        }
    }
}
