// SPDX-License-Identifier: GPL-2.0-or-later
//! What each step costs, in cycles. The figures are the thesis's (Tables 4.1 and 4.2); each of them is
//! a parameter.

use anyhow::{Result, anyhow, bail};

/// A step that costs cycles, and is accounted by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    Instruction,
    Walk,
    Raise,
    Flush,
    Inform,
    SavePc,
    SaveFlags,
    SaveRdi,
    CpuId,
    Mispredict,
    FirstInstruction,
    Lookup,
    Return,
}

use Step::*;

/// Name as in `--cost NAME=CYCLES`, the default, and where it comes from.
pub const STEPS: [(Step, &str, u64, &str); 13] = [
    (Instruction, "instruction", 1, "assumed"),
    (
        Walk,
        "walk",
        20,
        "assumed: kernel and user tables at once, so the same with and without ULPF",
    ),
    (
        Raise,
        "raise",
        65,
        "Table 4.1 (1) less the total of Table 4.2, not broken down there",
    ),
    (Flush, "flush", 10, "Table 4.2 (1)"),
    (Inform, "inform", 6, "Table 4.2 (2)"),
    (SavePc, "save-pc", 6, "Table 4.2 (3)"),
    (SaveFlags, "save-flags", 12, "Table 4.2 (4)"),
    (SaveRdi, "save-rdi", 12, "Table 4.2 (5)"),
    (CpuId, "cpu-id", 7, "Table 4.2 (6)"),
    (Mispredict, "mispredict", 10, "Table 4.2 (7)"),
    (FirstInstruction, "first-instruction", 2, "Table 4.2 (8)"),
    (
        Lookup,
        "lookup",
        200,
        "Table 4.1 (2), for the modelled handler of --watch only",
    ),
    (Return, "return", 85, "Table 4.1 (4)"),
];

/// Table 4.2: from the fault to the first instruction of the handler.
pub const DELIVERY: [Step; 8] = [
    Flush,
    Inform,
    SavePc,
    SaveFlags,
    SaveRdi,
    CpuId,
    Mispredict,
    FirstInstruction,
];

/// Table 4.1's second column: what the same takes with signals, measured there; nothing here does it.
pub const SIGNALS: [(&str, u64); 6] = [
    ("fault to entering handler", 8800),
    ("handler lookup", 210),
    ("allowing the write", 3500),
    ("exiting handler", 5200),
    ("reexecuting the write", 3600),
    ("restoring r/o permissions", 3600),
];

#[derive(Clone, Debug)]
pub struct Costs([u64; STEPS.len()]);

impl Default for Costs {
    fn default() -> Self {
        Costs(STEPS.map(|(_, _, cycles, _)| cycles))
    }
}

impl Costs {
    pub fn of(&self, step: Step) -> u64 {
        self.0[step as usize]
    }

    /// Table 4.2.
    pub fn delivery(&self) -> u64 {
        DELIVERY.iter().map(|&s| self.of(s)).sum()
    }

    /// Table 4.1 (1).
    pub fn entry(&self) -> u64 {
        self.of(Raise) + self.delivery()
    }

    /// `NAME=CYCLES`.
    pub fn set(&mut self, text: &str) -> Result<()> {
        let (name, cycles) = text
            .split_once('=')
            .ok_or_else(|| anyhow!("`{text}` is not NAME=CYCLES"))?;
        let Some(at) = STEPS.iter().position(|s| s.1 == name) else {
            let names: Vec<_> = STEPS.iter().map(|s| s.1).collect();
            bail!("no step is called `{name}`; there are {}", names.join(", "));
        };
        self.0[at] = cycles
            .parse::<u32>()
            .map_err(|_| anyhow!("`{cycles}` is no number of cycles"))?
            .into();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thesis_totals() {
        let c = Costs::default();
        assert_eq!(c.delivery(), 65);
        assert_eq!((c.entry(), c.of(Lookup), c.of(Return)), (130, 200, 85));
        assert_eq!(SIGNALS.iter().map(|s| s.1).sum::<u64>(), 24910);
        for (n, s) in STEPS.iter().enumerate() {
            assert_eq!(s.0 as usize, n);
        }
    }

    #[test]
    fn parameters() {
        let mut c = Costs::default();
        c.set("raise=0").unwrap();
        assert_eq!(c.entry(), 65);
        assert!(c.set("rise=0").unwrap_err().to_string().contains("raise"));
        assert!(c.set("raise=x").is_err());
        assert!(c.set("raise").is_err());
    }
}
