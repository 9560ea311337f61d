//! Addresses of remote stubs.
#![forbid(unsafe_code)]

use std::path::PathBuf;

/// The address of a remote stub.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    Unix(PathBuf),
    Tcp(String),
}

impl Place {
    /// A path, or HOST:PORT.
    pub fn parse(text: &str) -> Place {
        match text.contains(':') && !text.contains('/') {
            true => Place::Tcp(match text.strip_prefix(':') {
                Some(port) => format!("127.0.0.1:{port}"),
                None => text.to_owned(),
            }),
            false => Place::Unix(text.into()),
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Place::Unix(path) => write!(f, "{}", path.display()),
            Place::Tcp(addr) => f.write_str(addr),
        }
    }
}
