//! Finds the user at the other end of a connection. Every user of a machine can reach its loopback ports.
#![forbid(unsafe_code)]

use crate::peer::Owner;
use std::time::Duration;
use tokio::net::{TcpStream, UnixStream};

/// Attempts to find the entry: the kernel's list changes while it is read page by page, so an entry may be missed.
const LOOKS: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A process of this machine, of this user.
    User(u32),
    /// On another machine (or in another network namespace).
    Elsewhere,
    /// On this machine, but the user is unknown.
    Unknown,
}

/// Looks for the other end's own entry among the kernel's connections.
pub async fn of_tcp(stream: &TcpStream) -> Peer {
    let (Ok(ours), Ok(theirs)) = (stream.local_addr(), stream.peer_addr()) else {
        return Peer::Unknown;
    };
    let loopback = theirs.ip().to_canonical().is_loopback();
    for look in 0..LOOKS {
        match crate::peer::owner(ours, theirs) {
            Some(Owner::User(user)) => return Peer::User(user),
            Some(Owner::Closed) => return Peer::Unknown,
            None if !loopback => return Peer::Elsewhere,
            None if look + 1 < LOOKS => tokio::time::sleep(Duration::from_millis(5)).await,
            None => {}
        }
    }
    Peer::Unknown
}

pub fn of_unix(stream: &UnixStream) -> Peer {
    match stream.peer_cred() {
        Ok(who) => Peer::User(who.uid()),
        Err(_) => Peer::Unknown,
    }
}
