//! JSON output of the command: one object a line, without characters that a terminal would obey.

use crate::foreign::text::is_plain;
use serde::{Serialize, Serializer};
use serde_json::ser::Formatter;
use serde_json::value::RawValue;
use std::fmt;
use std::io::{self, Write};

/// `value` on a line of its own.
pub fn line(value: &impl Serialize) -> String {
    let mut out = String::new();
    append(&mut out, value);
    out
}

/// Appends `value` and the end of the line.
pub fn append(out: &mut String, value: &impl Serialize) {
    put(out, value);
    out.push('\n');
}

/// Appends `value`, or nothing if JSON cannot represent it (a map with keys that are no texts); no caller has one.
pub fn put(out: &mut String, value: &impl Serialize) {
    let before = out.len();
    let mut to = serde_json::Serializer::with_formatter(Appending(out), Escaping);
    if value.serialize(&mut to).is_err() {
        out.truncate(before);
    }
}

/// Receives the output of serde_json: whole characters, piece by piece.
struct Appending<'a>(&'a mut String);

impl Write for Appending<'_> {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        let text = std::str::from_utf8(piece).map_err(io::Error::other)?;
        self.0.push_str(text);
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Compact format that escapes every character that is not plain.
struct Escaping;

impl Formatter for Escaping {
    fn write_string_fragment<W>(&mut self, to: &mut W, fragment: &str) -> io::Result<()>
    where
        W: ?Sized + Write,
    {
        let mut rest = fragment;
        while let Some(at) = rest.find(|c| !is_plain(c)) {
            let (plain, from) = rest.split_at(at);
            to.write_all(plain.as_bytes())?;
            let mut chars = from.chars();
            let mut units = [0; 2];
            let units = chars.next().map(|c| c.encode_utf16(&mut units));
            for unit in units.into_iter().flatten() {
                write!(to, "\\u{unit:04x}")?;
            }
            rest = chars.as_str();
        }
        to.write_all(rest.as_bytes())
    }
}

/// An address, as a text, because a JSON number may lose its last bits.
#[derive(Clone, Copy, Debug, Default)]
pub struct Address(pub u64);

impl Serialize for Address {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{:#x}", self.0))
    }
}

/// Bytes in hex, first byte first.
#[derive(Clone, Copy, Debug)]
pub struct Hex<'a>(pub &'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl Serialize for Hex<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// A number with as many decimal places as `text` has.
pub fn number(text: impl fmt::Display) -> Option<Box<RawValue>> {
    RawValue::from_string(text.to_string()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoting() {
        let text = line(&"a\"b\\c\n\u{1}é");
        assert_eq!(text, "\"a\\\"b\\\\c\\n\\u0001é\"\n");
        let foreign = "\u{9b}31m\u{202e}\u{e0001}\x7f";
        let quoted = line(&foreign);
        assert!(quoted.is_ascii(), "{quoted}");
        assert_eq!(serde_json::from_str::<String>(&quoted).unwrap(), foreign);
    }

    #[test]
    fn numbers() {
        let of = (Address(16), Hex(&[1, 0xfe]), number("1.50"));
        assert_eq!(line(&of), "[\"0x10\",\"01fe\",1.50]\n");
    }
}
