//! What the cases of a benchmark work with, and where their readings go.

use super::clock::Clock;
use super::programs::Programs;
use super::readings::{CLOCK, PROCESSOR, Readings};
use anyhow::Result;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What the cases work with.
pub struct Bench {
    pub quick: bool,
    /// How often A and B take their turn.
    pub turns: u32,
    pub programs: Programs,
    /// This very command.
    pub ulpf: PathBuf,
    /// How long anything may take.
    pub limit: Duration,
    pub readings: Readings,
    /// What could not take part, and why.
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

    /// What `work` costs that starts commands: by the clock, and in processor time where that is counted.
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
