//! Values of JSON, written without an allocation.

use core::fmt::{self, Write};

/// A string of JSON.
pub struct Quoted<'a>(pub &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_char('"')?;
        for ch in self.0.chars() {
            match ch {
                '"' => f.write_str("\\\"")?,
                '\\' => f.write_str("\\\\")?,
                c if (c as u32) < 32 => write!(f, "\\u{:04x}", c as u32)?,
                c => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }
}

/// Writes an unknown number as `null`.
pub(super) fn or_null(value: Option<impl fmt::Display>, f: &mut fmt::Formatter) -> fmt::Result {
    match value {
        Some(value) => write!(f, "{value}"),
        None => f.write_str("null"),
    }
}

/// Two digits for each byte, in quotation marks.
pub(super) struct Bytes<'a>(pub(super) &'a [u8]);

impl fmt::Display for Bytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_char('"')?;
        for byte in self.0 {
            write!(f, "{byte:02x}")?;
        }
        f.write_char('"')
    }
}
