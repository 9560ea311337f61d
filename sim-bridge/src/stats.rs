// SPDX-License-Identifier: GPL-2.0-or-later
//! What the machine has counted, as a table and as JSON.

use crate::costs::{Costs, SIGNALS, STEPS, Step};
use std::fmt::Write;

#[derive(Clone, Default, Debug)]
pub struct Stats {
    pub instructions: u64,
    pub cycles: u64,
    pub tlb_hits: u64,
    pub tlb_misses: u64,
    /// User-level page faults.
    pub faults: u64,
    /// Of the faults that the modelled handler (`--watch`) took: in a watch, or not.
    pub hits: u64,
    pub false_positives: u64,
    /// From the first instruction of a handler to its return.
    pub handler_cycles: u64,
    pub system_calls: u64,
    pub steps: [u64; STEPS.len()],
}

impl Stats {
    pub fn charge(&mut self, costs: &Costs, step: Step) {
        let cycles = costs.of(step);
        self.steps[step as usize] += cycles;
        self.cycles += cycles;
    }

    /// Cost of the same faults with signals, by the thesis's measurement.
    fn with_signals(&self) -> u64 {
        self.faults * SIGNALS.iter().map(|s| s.1).sum::<u64>()
    }

    fn rows(&self, watches: bool) -> Vec<(&'static str, u64)> {
        let mut rows = vec![
            ("instructions", self.instructions),
            ("cycles", self.cycles),
            ("tlb_hits", self.tlb_hits),
            ("tlb_misses", self.tlb_misses),
            ("faults", self.faults),
        ];
        if watches {
            rows.extend([
                ("hits", self.hits),
                ("false_positives", self.false_positives),
            ]);
        }
        rows.extend([
            ("handler_cycles", self.handler_cycles),
            ("system_calls", self.system_calls),
            ("signal_cycles_modelled", self.with_signals()),
        ]);
        rows
    }

    pub fn table(&self, watches: bool) -> String {
        let mut out = String::new();
        for (name, value) in self.rows(watches) {
            let _ = writeln!(out, "{:<24}{value:>16}", name.replace('_', " "));
        }
        for (n, (_, name, ..)) in STEPS.iter().enumerate() {
            if self.steps[n] != 0 {
                let _ = writeln!(
                    out,
                    "{:<24}{:>16}",
                    format!("cycles of {name}"),
                    self.steps[n]
                );
            }
        }
        out
    }

    /// One object on one line.
    pub fn json(&self, watches: bool, status: i32) -> String {
        let mut out = format!("{{\"status\":{status}");
        for (name, value) in self.rows(watches) {
            let _ = write!(out, ",\"{name}\":{value}");
        }
        let steps: Vec<_> = STEPS
            .iter()
            .enumerate()
            .map(|(n, s)| format!("\"{}\":{}", s.1, self.steps[n]))
            .collect();
        let _ = write!(out, ",\"step_cycles\":{{{}}}}}", steps.join(","));
        out
    }
}
