//! Whose the other end of a TCP connection is, if that is a process of this machine. Every user of a machine reaches
//! its loopback ports, so who listens there asks before it answers.
//!
//! The command and the simulator ask here, so nothing of either is needed.
#![forbid(unsafe_code)]

mod diag;
mod owner;
mod table;

pub use owner::Owner;

use std::net::SocketAddr;

/// The owner of the other end of a connection; `ours` and `theirs` are the addresses as our end has them. `None`: the
/// other end is of another machine (or another network namespace), or has been overlooked, since the kernel's list is
/// read a page at a time while it changes.
pub fn owner(ours: SocketAddr, theirs: SocketAddr) -> Option<Owner> {
    if let Some(owner) = diag::owner(theirs, ours) {
        return Some(owner);
    }
    let tables = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];
    tables.iter().find_map(|table| {
        let text = std::fs::read_to_string(table).ok()?;
        table::owner(&text, ours, theirs)
    })
}
