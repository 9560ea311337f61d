//! A filter in the bridge's messages: docs/bridge.md, "Filters".

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};

use super::words::from_hex;
use super::{Condition, Ranges, Thread};

/// Bytecode is a string of hexadecimal digits.
impl Serialize for Condition {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&self.to_string())
    }
}

impl<'de> Deserialize<'de> for Condition {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Condition, D::Error> {
        let hex = String::deserialize(d)?;
        let code = from_hex(&hex).ok_or(de::Error::custom("bytecode is in hexadecimal digits"))?;
        Condition::new(code).map_err(de::Error::custom)
    }
}

/// A number: only our own stub knows the main thread.
impl Serialize for Thread {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Thread::Id(id) => s.serialize_u64(*id),
            Thread::Main => Err(ser::Error::custom("the main thread has no number here")),
        }
    }
}

impl<'de> Deserialize<'de> for Thread {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Thread, D::Error> {
        u64::deserialize(d).map(Thread::Id)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename = "Ranges")]
struct Wire {
    inside: bool,
    ranges: Vec<(u64, u64)>,
}

impl Serialize for Ranges {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let ranges = self.list.clone();
        let inside = self.inside;
        Wire { inside, ranges }.serialize(s)
    }
}

impl<'de> Deserialize<'de> for Ranges {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Ranges, D::Error> {
        let wire = Wire::deserialize(d)?;
        Ok(Ranges::new(wire.inside, wire.ranges))
    }
}
