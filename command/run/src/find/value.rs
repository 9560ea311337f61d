//! Values in a search, and values in memory.

use anyhow::{Result, bail};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Meaning of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Type {
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    F32,
    F64,
    /// Characters, without an end
    Str,
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        f.write_str(value.as_ref().map_or("", |v| v.get_name()))
    }
}

/// A number of one of the types, with all its bits.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub enum Number {
    Whole(i128),
    Real(f64),
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Number::Whole(n) => n.fmt(f),
            Number::Real(n) => fmt::Debug::fmt(n, f),
        }
    }
}

impl Type {
    /// Size in bytes; of characters, one.
    pub fn size(self) -> usize {
        match self {
            Type::I8 | Type::U8 | Type::Str => 1,
            Type::I16 | Type::U16 => 2,
            Type::I32 | Type::U32 | Type::F32 => 4,
            Type::I64 | Type::U64 | Type::F64 => 8,
        }
    }

    /// The number that these bytes mean, as many as the type has.
    pub fn number(self, bits: u64) -> Number {
        Number::Whole(match self {
            Type::I8 => i128::from(bits as i8),
            Type::I16 => i128::from(bits as i16),
            Type::I32 => i128::from(bits as i32),
            Type::I64 => i128::from(bits as i64),
            Type::U8 | Type::Str => i128::from(bits as u8),
            Type::U16 => i128::from(bits as u16),
            Type::U32 => i128::from(bits as u32),
            Type::U64 => i128::from(bits),
            Type::F32 => return Number::Real(f32::from_bits(bits as u32).into()),
            Type::F64 => return Number::Real(f64::from_bits(bits)),
        })
    }

    /// Parses a number; one that the type cannot hold is refused.
    fn parse(self, text: &str) -> Result<Number> {
        let text = text.trim();
        let fits =
            |n: i128| (self.number(n as u64) == Number::Whole(n)).then_some(Number::Whole(n));
        let number = match self {
            // Rounded to the type: 0.1 finds the bytes of 0.1f.
            Type::F32 => text.parse::<f32>().ok().map(|n| Number::Real(n.into())),
            Type::F64 => text.parse().ok().map(Number::Real),
            Type::Str => None,
            _ => parse_integer(text).and_then(fits),
        };
        match number {
            Some(number) => Ok(number),
            None => bail!("`{text}` is no value of type {self}"),
        }
    }

    /// The default type for a value.
    pub fn of(text: &str) -> Type {
        let first = text
            .split("..")
            .find(|part| !part.is_empty())
            .unwrap_or("0");
        let first = first.trim_start_matches('=');
        match (parse_integer(first), first.parse::<f64>()) {
            (Some(n), _) if i32::try_from(n).is_ok() => Type::I32,
            (Some(n), _) if i64::try_from(n).is_ok() => Type::I64,
            (Some(_), _) => Type::U64,
            (None, Ok(_)) => Type::F64,
            (None, Err(_)) => Type::Str,
        }
    }
}

/// `42`, `-1`, `0x2a`.
fn parse_integer(text: &str) -> Option<i128> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let n = match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok()?,
        None => digits.parse::<u64>().ok()?,
    };
    Some(if negative { -i128::from(n) } else { n.into() })
}

/// The values that a search accepts.
#[derive(Clone, Debug, PartialEq)]
pub enum Wanted {
    /// These characters.
    Text(Vec<u8>),
    /// From one to another, each of which may be missing; and whether the range includes the last.
    Range(Option<Number>, Option<Number>, bool),
    /// Compared with the value of the last search.
    Changed,
    Unchanged,
    Increased,
    Decreased,
}

impl Wanted {
    /// Parses a value or a range as in watches (`10..20`, `10..=20`, `..`). With `narrow`, also a change since the last
    /// search.
    pub fn parse(text: &str, ty: Type, narrow: bool) -> Result<Wanted> {
        let change = match text {
            "changed" => Some(Wanted::Changed),
            "unchanged" => Some(Wanted::Unchanged),
            "increased" => Some(Wanted::Increased),
            "decreased" => Some(Wanted::Decreased),
            _ => None,
        };
        if let (Some(change), true) = (change, narrow) {
            return Ok(change);
        }
        if ty == Type::Str {
            if text.is_empty() {
                bail!("an empty text stands everywhere");
            }
            return Ok(Wanted::Text(text.as_bytes().to_vec()));
        }
        let Some((from, to)) = text.split_once("..") else {
            let value = ty.parse(text)?;
            return Ok(Wanted::Range(Some(value), Some(value), true));
        };
        let (to, last) = match to.strip_prefix('=') {
            Some(to) => (to, true),
            None => (to, false),
        };
        let end = |text: &str| match text {
            "" => Ok(None),
            text => ty.parse(text).map(Some),
        };
        let (from, to) = (end(from)?, end(to)?);
        if let (Some(a), Some(b)) = (from, to)
            && (a > b || a == b && !last)
        {
            bail!("`{text}` is an empty range");
        }
        Ok(Wanted::Range(from, to, last))
    }

    /// `before`: the value of the last search, if there was one.
    pub fn accepts(&self, ty: Type, before: Option<u64>, now: u64) -> bool {
        let number = ty.number(now);
        let than = |before: u64| number.partial_cmp(&ty.number(before));
        match self {
            Wanted::Text(_) => false,
            Wanted::Range(from, to, last) => {
                from.is_none_or(|from| number >= from)
                    && to.is_none_or(|to| number < to || *last && number == to)
            }
            Wanted::Changed => before.is_some_and(|b| b != now),
            Wanted::Unchanged => before.is_some_and(|b| b == now),
            Wanted::Increased => before.and_then(than).is_some_and(|o| o.is_gt()),
            Wanted::Decreased => before.and_then(than).is_some_and(|o| o.is_lt()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_meant() {
        for (text, ty) in [
            ("42", Type::I32),
            ("-1", Type::I32),
            ("0xffffffff", Type::I64),
            ("18446744073709551615", Type::U64),
            ("1.5", Type::F64),
            ("10..20", Type::I32),
            ("1.5..2", Type::F64),
            ("..", Type::I32),
            ("hello", Type::Str),
        ] {
            assert_eq!(Type::of(text), ty, "{text}");
        }
        let accepts = |text: &str, ty: Type, bits: u64| {
            Wanted::parse(text, ty, false)
                .unwrap()
                .accepts(ty, None, bits)
        };
        for (text, ty, bits, is) in [
            ("42", Type::I32, 42, true),
            ("-1", Type::I32, 0xffff_ffff, true),
            ("-1", Type::I8, 0xff, true),
            ("255", Type::U8, 0xff, true),
            ("10..20", Type::I32, 19, true),
            ("10..20", Type::I32, 20, false),
            ("10..=20", Type::I32, 20, true),
            ("..", Type::U64, u64::MAX, true),
            ("0.1", Type::F32, 0.1f32.to_bits().into(), true),
            ("0.1", Type::F64, 0.1f64.to_bits(), true),
            ("1.0..2.0", Type::F64, 1.5f64.to_bits(), true),
            ("1.0..2.0", Type::F64, f64::NAN.to_bits(), false),
            ("..", Type::F64, f64::NAN.to_bits(), true),
        ] {
            assert_eq!(accepts(text, ty, bits), is, "{text} {ty} {bits:#x}");
        }
        for (text, ty) in [
            ("256", Type::U8),
            ("-1", Type::U32),
            ("x", Type::I32),
            ("20..10", Type::I32),
            ("3..3", Type::I32),
            ("changed", Type::I32),
            ("", Type::Str),
        ] {
            assert!(Wanted::parse(text, ty, false).is_err(), "{text}");
        }
    }

    #[test]
    fn what_has_become_of_it() {
        let since = |word: &str, ty: Type, before: u64, now: u64| {
            Wanted::parse(word, ty, true)
                .unwrap()
                .accepts(ty, Some(before), now)
        };
        assert!(since("increased", Type::I32, 0xffff_ffff, 0));
        assert!(!since("increased", Type::U32, 0xffff_ffff, 0));
        assert!(since(
            "decreased",
            Type::F64,
            1.5f64.to_bits(),
            (-1.0f64).to_bits()
        ));
        assert!(since("changed", Type::I64, 1, 2) && !since("changed", Type::I64, 2, 2));
        assert!(since("unchanged", Type::I64, 2, 2));
        assert!(!since("increased", Type::F64, f64::NAN.to_bits(), 0));
    }
}
