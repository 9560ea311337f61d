//! A filter in the words of `monitor ulpf watch` and `monitor ulpf filter`: parsed and printed only here. (`ulpf run` and
//! the plugin also accept names and types, and translate them to these words.)
//!
//! ```text
//! changed · thread TID|main · skip N · count N · unit BYTES
//! [called] from|outside RANGES                RANGES: 0x1000-0x2000,0x3000-0x3800, or none
//! old|new OP N [mask M]                       OP: == != < <= > >= (unsigned)
//! if x BYTECODE                               a GDB agent expression, in hex
//! ```

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use super::{Condition, Filter, MOST_CODE, MOST_VALUE, Ranges, Thread};
use crate::agent::{op, variable};
use crate::number::number;

impl Filter {
    /// Parses a word and its arguments. `Ok(false)`: the word does not belong to a filter.
    ///
    /// # Errors
    /// The arguments that the word needs, if others follow it.
    pub fn take<'a>(
        &mut self,
        word: &str,
        rest: &mut impl Iterator<Item = &'a str>,
    ) -> Result<bool, &'static str> {
        match word {
            "changed" => self.changed = true,
            "thread" => match rest.next() {
                Some("main") => self.thread = Some(Thread::Main),
                word => match number(word) {
                    Some(id) if id > 0 => self.thread = Some(Thread::Id(id)),
                    _ => return Err("thread takes a Linux thread id, or main"),
                },
            },
            "skip" => self.skip = number(rest.next()).ok_or("skip takes a number")?,
            "count" => self.count = Some(number(rest.next()).ok_or("count takes a number")?),
            "unit" => match number(rest.next()) {
                Some(n) if n <= MOST_VALUE => self.unit = n,
                _ => return Err("unit takes a number from 0 to 8"),
            },
            "from" | "outside" => self.pc = Some(ranges(word, rest.next())?),
            "called" => match rest.next() {
                Some(word @ ("from" | "outside")) => self.caller = Some(ranges(word, rest.next())?),
                _ => return Err("called is followed by from or outside"),
            },
            "old" => self.conditions.push(comparison(variable::OLD, rest)?),
            "new" => self.conditions.push(comparison(variable::NEW, rest)?),
            // A mask for the comparison before it.
            "mask" => {
                let mask = number(rest.next()).ok_or("mask takes a number")?;
                let last = self.conditions.last_mut();
                last.and_then(|c| masked(c, mask))
                    .ok_or("mask follows old or new OP N")?;
            }
            "if" => {
                let hex = rest.next().filter(|word| *word == "x");
                let code = hex.and_then(|_| rest.next()).and_then(bytecode);
                let code = code.ok_or("if takes x and bytecode in hex")?;
                self.conditions.push(Condition::new(code)?);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// `old == 5`, as bytecode: see [`masked`] for its form.
fn comparison<'a>(
    variable: u16,
    rest: &mut impl Iterator<Item = &'a str>,
) -> Result<Condition, &'static str> {
    let tail: &[u8] = match rest.next() {
        Some("==") => &[op::EQUAL],
        Some("!=") => &[op::EQUAL, op::LOG_NOT],
        Some("<") => &[op::LESS_UNSIGNED],
        Some(">=") => &[op::LESS_UNSIGNED, op::LOG_NOT],
        Some(">") => &[op::SWAP, op::LESS_UNSIGNED],
        Some("<=") => &[op::SWAP, op::LESS_UNSIGNED, op::LOG_NOT],
        _ => return Err("old and new are followed by ==, !=, <, <=, > or >="),
    };
    let value = number(rest.next()).ok_or("a value is compared with a number")?;
    let mut code = vec![op::GETV];
    code.extend(variable.to_be_bytes());
    code.push(op::CONST64);
    code.extend(value.to_be_bytes());
    code.extend(tail);
    code.push(op::END);
    Condition::new(code)
}

/// Puts `& mask` behind the variable of a comparison. Returns `None` if the condition is not a comparison.
fn masked(condition: &mut Condition, mask: u64) -> Option<()> {
    let code = &mut condition.code;
    let compares = code.first() == Some(&op::GETV) && code.get(3) == Some(&op::CONST64);
    if !compares || code.len() < 13 {
        return None;
    }
    let mut middle = vec![op::CONST64];
    middle.extend(mask.to_be_bytes());
    middle.push(op::BIT_AND);
    code.splice(3..3, middle);
    Some(())
}

fn bytecode(hex: &str) -> Option<Vec<u8>> {
    from_hex(hex).filter(|code| code.len() < MOST_CODE)
}

fn from_hex(hex: &str) -> Option<Vec<u8>> {
    let digit = |c: &u8| (*c as char).to_digit(16).map(|d| d as u8);
    if hex.len() & 1 != 0 {
        return None;
    }
    hex.as_bytes()
        .chunks_exact(2)
        .map(|pair| Some(digit(pair.first()?)? << 4 | digit(pair.last()?)?))
        .collect()
}

fn ranges(word: &str, text: Option<&str>) -> Result<Ranges, &'static str> {
    const WHAT: &str =
        "from and outside take ranges of addresses (0x1000-0x2000,0x3000-0x4000) or none";
    let text = text.ok_or(WHAT)?;
    let mut list = Vec::new();
    for part in text.split(',').filter(|_| text != "none") {
        let (start, end) = part.split_once('-').ok_or(WHAT)?;
        match (number(Some(start)), number(Some(end))) {
            (Some(start), Some(end)) if start < end => list.push((start, end)),
            _ => return Err(WHAT),
        }
    }
    Ok(Ranges::new(word == "from", list))
}

impl fmt::Display for Ranges {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(if self.inside { "from " } else { "outside " })?;
        if self.list.is_empty() {
            return f.write_str("none");
        }
        for (n, (start, end)) in self.list.iter().enumerate() {
            let comma = if n > 0 { "," } else { "" };
            write!(f, "{comma}{start:#x}-{end:#x}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.code
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Display for Thread {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Thread::Main => f.write_str("main"),
            Thread::Id(id) => write!(f, "{id}"),
        }
    }
}

/// Prints the words that [`Filter::take`] parses as the same filter, each after a blank.
impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        if self.changed {
            f.write_str(" changed")?;
        }
        if let Some(thread) = &self.thread {
            write!(f, " thread {thread}")?;
        }
        if self.skip > 0 {
            write!(f, " skip {}", self.skip)?;
        }
        if let Some(count) = self.count {
            write!(f, " count {count}")?;
        }
        if let Some(ranges) = &self.pc {
            write!(f, " {ranges}")?;
        }
        if let Some(ranges) = &self.caller {
            write!(f, " called {ranges}")?;
        }
        for condition in &self.conditions {
            write!(f, " if x {condition}")?;
        }
        if self.unit > 0 {
            write!(f, " unit {}", self.unit)?;
        }
        Ok(())
    }
}
