//! What fuzz/ needs of `ulpf run`; compiled only there.
#![forbid(unsafe_code)]

use super::stops::{console, stop_of};

/// A packet of a stub, read as a stop reply and as console output; the text of the latter.
pub fn packet(packet: &[u8]) -> Option<String> {
    let _ = stop_of(packet);
    console(packet)
}
