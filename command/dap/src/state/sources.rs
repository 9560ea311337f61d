//! Sources: files of this machine, and substitutes for missing ones.
#![forbid(unsafe_code)]

use serde_json::{Value, json};
use std::path::Path;

/// Source files that are not on this machine: each has a number, and an address in its code.
#[derive(Default)]
pub struct Sources {
    missing: Vec<(String, Option<u64>)>,
}

/// The last part of a path.
pub fn name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// A file of this machine as a Source of the protocol.
pub fn source(path: &str) -> Value {
    json!({"name": name(path), "path": path})
}

impl Sources {
    pub fn describe(&mut self, path: &str, address: Option<u64>) -> Value {
        let mut described = source(path);
        if Path::new(path).is_file() {
            return described;
        }
        let at = self.missing.iter().position(|(p, _)| p == path);
        let at = at.unwrap_or_else(|| {
            self.missing.push((path.into(), address));
            self.missing.len() - 1
        });
        if self.missing[at].1.is_none() {
            self.missing[at].1 = address;
        }
        described["sourceReference"] = (at + 1).into();
        described["presentationHint"] = "deemphasize".into();
        described["origin"] = "not on this machine".into();
        described
    }

    pub fn get(&self, reference: i64) -> Option<&(String, Option<u64>)> {
        self.missing
            .get(usize::try_from(reference.checked_sub(1)?).ok()?)
    }
}
