//! Entry points of `ulpf run` for the fuzz targets in fuzz/. No other code calls them.
#![forbid(unsafe_code)]

use super::stops::{console, stop_of};
use ulpf_heap::pattern::Frame;
use ulpf_heap::suppress::{Case, Suppressions, make};
use ulpf_lib::ring::findings::Wrong;

/// Parses a stub's packet as a stop reply and as console output; returns the text of the latter.
pub fn packet(packet: &[u8]) -> Option<String> {
    let _ = stop_of(packet);
    console(packet)
}

/// Compares a suppression file with errors whose functions have these names, and checks that a generated entry
/// suppresses its error.
pub fn suppressions(text: &str, names: &[&str]) {
    let mut read = Suppressions::default();
    let _ = read.parse(text);
    let frame = |(n, name): (usize, &&str)| Frame {
        names: Some(name.to_string())
            .filter(|n| !n.is_empty())
            .into_iter()
            .collect(),
        object: (n % 2 == 0).then(|| format!("/lib/{name}")),
        linked: n as u64,
        source: Some(name.to_string()),
        line: Some(n as u32),
    };
    let frames: Vec<Frame> = names.iter().enumerate().map(frame).collect();
    for wrong in Wrong::ALL {
        let case = Case {
            wrong,
            syscall: names.first().copied().filter(|_| names.len() > 3),
            frames: &frames,
            inner: names.len() / 4,
        };
        let _ = read.find(&case).map(|n| read.name(n));
        let mut made = Suppressions::default();
        assert!(made.parse(&make(&case, 8, frames.len())).is_ok());
    }
}
