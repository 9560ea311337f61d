//! The words of monitor commands: numbers, places, comparisons, ranges and bytecode. Texts in, values out;
//! nothing of the stub is asked here, so that `stub/host-tests` and `fuzz/` can compile this file, too.

use alloc::vec;
use alloc::vec::Vec;

use ulpf_engine::agent::op;

use crate::inferior::AgentExpr;

/// Longest bytecode: its jumps have 16 bits.
const MOST_CODE: usize = 1 << 16;

pub fn number(s: Option<&str>) -> Option<u64> {
    let s = s?;
    match s.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => s.parse().ok(),
    }
}

/// So many watches of `len` bytes from `start` on, `stride` bytes apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    pub start: u64,
    pub len: u64,
    pub count: u64,
    pub stride: u64,
}

/// Watches in one place: an answer has a line for each that is refused.
const MOST: u64 = 1 << 20;

pub fn place(word: &str) -> Option<Place> {
    let (start, rest) = word.split_once(':')?;
    let start = number(Some(start))?;
    let Some((len, rest)) = rest.split_once('*') else {
        return Some(Place {
            start,
            len: number(Some(rest))?,
            count: 1,
            stride: 0,
        });
    };
    let (count, stride) = rest.split_once('+')?;
    Some(Place {
        start,
        len: number(Some(len))?,
        count: number(Some(count)).filter(|n| *n <= MOST)?,
        stride: number(Some(stride))?,
    })
}

/// `old == 5`, as bytecode: see [`masked`] for its form.
pub fn comparison<'a>(
    variable: u16,
    w: &mut impl Iterator<Item = &'a str>,
) -> Result<AgentExpr, &'static str> {
    let tail: &[u8] = match w.next() {
        Some("==") => &[op::EQUAL],
        Some("!=") => &[op::EQUAL, op::LOG_NOT],
        Some("<") => &[op::LESS_UNSIGNED],
        Some(">=") => &[op::LESS_UNSIGNED, op::LOG_NOT],
        Some(">") => &[op::SWAP, op::LESS_UNSIGNED],
        Some("<=") => &[op::SWAP, op::LESS_UNSIGNED, op::LOG_NOT],
        _ => return Err("old and new are followed by ==, !=, <, <=, > or >="),
    };
    let value = number(w.next()).ok_or("a value is compared with a number")?;
    let mut code = vec![op::GETV];
    code.extend(variable.to_be_bytes());
    code.push(op::CONST64);
    code.extend(value.to_be_bytes());
    code.extend(tail);
    code.push(op::END);
    Ok(code)
}

/// Puts `& mask` behind the variable of a comparison.
pub fn masked(code: &mut AgentExpr, mask: u64) -> Result<(), &'static str> {
    if code.len() < 13 || code.get(3) != Some(&op::CONST64) {
        return Err("mask follows old or new OP N");
    }
    let mut middle = vec![op::CONST64];
    middle.extend(mask.to_be_bytes());
    middle.push(op::BIT_AND);
    code.splice(3..3, middle);
    Ok(())
}

/// Bytecode, as hex.
pub fn bytecode(hex: &str) -> Option<AgentExpr> {
    let digit = |c: &u8| (*c as char).to_digit(16).map(|d| d as u8);
    if hex.len() & 1 != 0 {
        return None;
    }
    let code: Option<Vec<u8>> = hex
        .as_bytes()
        .chunks_exact(2)
        .map(|pair| Some(digit(pair.first()?)? << 4 | digit(pair.last()?)?))
        .collect();
    code.filter(|c| c.len() < MOST_CODE)
}

/// `[start, end)`, ascending and disjoint.
pub fn ranges(text: Option<&str>) -> Result<Vec<(u64, u64)>, &'static str> {
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
    list.sort_unstable();
    // Overlapping ones become one.
    list.dedup_by(|next, before| {
        let joins = next.0 <= before.1;
        if joins {
            before.1 = before.1.max(next.1);
        }
        joins
    });
    Ok(list)
}
