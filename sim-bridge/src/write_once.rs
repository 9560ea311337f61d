// SPDX-License-Identifier: GPL-2.0-or-later
//! Write-once: a handler that just returns has permitted the access this one time (thesis, section
//! 3.2.3). Three rules, because the thesis's fail:
//!
//! * `bit`, as first described there: a bit in the TLB entry, set before the handler runs. The next
//!   access clears it and passes. An instruction with two addresses (MOVUPS as two stores) never ends:
//!   its first access takes the permit, and its second one faults, each time.
//! * `thesis`, Figure 3.5: the address that faulted is kept in a register. While the bit is set other
//!   addresses pass; the same address passes and clears the bit. MOVUPS ends. An instruction that
//!   accesses one address twice does not. The load of a read-modify-write, which is checked as a
//!   store, takes the permit, and its store faults, each time.
//! * `corrected`: the instruction is armed, with all addresses at which it has faulted so far. These
//!   pass while that instruction is executed once, however many accesses it makes. Each repetition
//!   adds an address, so every instruction ends.

use crate::tlb::Entry;
use anyhow::{Result, bail};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    Bit,
    Thesis,
    Corrected,
}

impl std::str::FromStr for Rule {
    type Err = anyhow::Error;

    fn from_str(s: &str) -> Result<Rule> {
        Ok(match s {
            "bit" => Rule::Bit,
            "thesis" => Rule::Thesis,
            "corrected" => Rule::Corrected,
            _ => bail!("`{s}` is no write-once rule; there are bit, thesis and corrected"),
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// The handler runs.
    Handler,
    /// It has returned to the instruction, which has not begun.
    Returned,
    /// The instruction is at work.
    Executing,
}

#[derive(Debug)]
pub struct Armed {
    pc: u64,
    addrs: Vec<u64>,
    stage: Stage,
}

/// Handlers nested deeper than this lose their oldest permits (and those left by longjmp go so).
const NESTED: usize = 16;

pub struct WriteOnce {
    pub rule: Rule,
    /// Figure 3.5's internal register.
    saved: Option<u64>,
    pub(crate) armed: Vec<Armed>,
}

impl WriteOnce {
    pub fn new(rule: Rule) -> WriteOnce {
        WriteOnce {
            rule,
            saved: None,
            armed: vec![],
        }
    }

    /// Whether a forbidden access at `addr` by the instruction at `pc` passes.
    pub fn passes(&mut self, entry: &mut Entry, pc: u64, addr: u64) -> bool {
        let bit = entry.write_once;
        match self.rule {
            Rule::Bit => {
                entry.write_once = !bit;
                bit
            }
            Rule::Thesis if bit => {
                if self.saved == Some(addr) {
                    entry.write_once = false;
                    self.saved = None;
                }
                true
            }
            Rule::Thesis => {
                entry.write_once = true;
                self.saved = Some(addr);
                false
            }
            Rule::Corrected => self.armed_for(pc, addr),
        }
    }

    fn armed_for(&mut self, pc: u64, addr: u64) -> bool {
        if let Some(a) = self.armed.last_mut()
            && a.stage == Stage::Executing
            && a.pc == pc
        {
            if a.addrs.contains(&addr) {
                return true;
            }
            a.addrs.push(addr);
            a.stage = Stage::Handler;
            return false;
        }
        if self.armed.len() == NESTED {
            self.armed.remove(0);
        }
        self.armed.push(Armed {
            pc,
            addrs: vec![addr],
            stage: Stage::Handler,
        });
        false
    }

    /// ULIRET to `ip`: a handler that has gone elsewhere has taken its permit with it.
    pub fn returned(&mut self, ip: u64) {
        if let Some(a) = self.armed.last_mut() {
            match a.pc == ip {
                true => a.stage = Stage::Returned,
                false => _ = self.armed.pop(),
            }
        }
    }

    /// An instruction begins.
    #[inline]
    pub fn begins(&mut self, pc: u64) {
        if let Some(a) = self.armed.last_mut() {
            match a.stage {
                Stage::Handler => {}
                Stage::Returned if a.pc == pc => a.stage = Stage::Executing,
                Stage::Returned | Stage::Executing => _ = self.armed.pop(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Executes an instruction at 0x100 that makes these accesses until all pass in one go; the
    /// number of faults, or nothing if it does not end.
    fn faults(rule: Rule, accesses: &[u64]) -> Option<usize> {
        let mut once = WriteOnce::new(rule);
        let mut entry = Entry::default();
        'again: for faults in 0..50 {
            once.begins(0x100);
            for &a in accesses {
                if !once.passes(&mut entry, 0x100, a) {
                    once.begins(0x900);
                    once.returned(0x100);
                    continue 'again;
                }
            }
            return Some(faults);
        }
        None
    }

    #[test]
    fn one_store() {
        for rule in [Rule::Bit, Rule::Thesis, Rule::Corrected] {
            assert_eq!(faults(rule, &[8]), Some(1));
        }
    }

    /// Section 3.2.3: MOVUPS as two stores.
    #[test]
    fn movups_livelock() {
        assert_eq!(faults(Rule::Bit, &[8, 16]), None);
        assert_eq!(faults(Rule::Thesis, &[8, 16]), Some(2));
        assert_eq!(faults(Rule::Corrected, &[8, 16]), Some(2));
    }

    /// The load of a read-modify-write is checked as a store.
    #[test]
    fn read_modify_write() {
        assert_eq!(faults(Rule::Bit, &[8, 8]), None);
        assert_eq!(faults(Rule::Thesis, &[8, 8]), None);
        assert_eq!(faults(Rule::Corrected, &[8, 8]), Some(1));
    }

    #[test]
    fn a_permit_is_for_one_execution() {
        let mut once = WriteOnce::new(Rule::Corrected);
        let mut e = Entry::default();
        assert!(!once.passes(&mut e, 0x100, 8));
        once.returned(0x100);
        once.begins(0x100);
        assert!(once.passes(&mut e, 0x100, 8));
        once.begins(0x100);
        assert!(
            !once.passes(&mut e, 0x100, 8),
            "a loop of one instruction faults each time"
        );
        once.returned(0x104);
        once.begins(0x104);
        once.begins(0x100);
        assert!(
            !once.passes(&mut e, 0x100, 8),
            "a handler that skipped left no permit"
        );
    }

    #[test]
    fn a_fault_in_the_handler_keeps_the_outer_permit() {
        let mut once = WriteOnce::new(Rule::Corrected);
        let mut e = Entry::default();
        assert!(!once.passes(&mut e, 0x100, 8));
        once.begins(0x900);
        assert!(!once.passes(&mut e, 0x900, 16));
        once.returned(0x900);
        once.begins(0x900);
        assert!(once.passes(&mut e, 0x900, 16));
        once.begins(0x904);
        once.returned(0x100);
        once.begins(0x100);
        assert!(once.passes(&mut e, 0x100, 8));
    }
}
