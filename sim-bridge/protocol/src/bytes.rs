//! Memory and registers: in JSON a string of hexadecimal digits.

use serde::de::{Deserialize, Deserializer, Error};
use serde::ser::{Serialize, Serializer};
use std::fmt::Write;

#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Bytes(pub Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut text = String::with_capacity(2 * self.0.len());
        for b in &self.0 {
            let _ = write!(text, "{b:02x}");
        }
        to.serialize_str(&text)
    }
}

impl Bytes {
    /// Two digits a byte.
    pub fn from_hex(text: &str) -> Option<Bytes> {
        let digit = |b: u8| (b as char).to_digit(16).map(|d| d as u8);
        let pairs = text.as_bytes().chunks(2);
        let all: Option<Vec<u8>> = pairs
            .map(|p| Some(digit(p[0])? << 4 | digit(*p.get(1)?)?))
            .collect();
        all.map(Bytes)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
        let text = String::deserialize(from)?;
        Bytes::from_hex(&text)
            .ok_or_else(|| D::Error::custom("bytes are pairs of hexadecimal digits"))
    }
}
