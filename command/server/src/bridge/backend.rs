//! Back ends for programs of another machine, and a back end that has been started.
#![forbid(unsafe_code)]

use super::remote::Remote;
use std::path::PathBuf;
use tokio::process::Child;
use ulpf_inject::settings::Settings;
use ulpf_listen::socket_dir::SocketDir;

/// The back end of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackEnd {
    /// `ulpf-sim`, a process of its own.
    Sim,
    /// gem5, behind its remote port: `--gem5`, or `gem5.opt` in PATH.
    Gem5(Option<PathBuf>),
    /// Any remote stub that listens here, with its program.
    At(Place),
}

impl BackEnd {
    /// Returns `None` if the name is not a back end of the bridge.
    pub fn parse(name: &str) -> Option<BackEnd> {
        match name {
            "sim" => Some(BackEnd::Sim),
            "gem5" => Some(BackEnd::Gem5(None)),
            _ => Some(BackEnd::At(Place::parse(name.strip_prefix("rsp:")?))),
        }
    }

    /// From the command line's options: the back end, and the settings of our own stub if there is no back end.
    pub fn choose(
        placement: Option<&str>,
        backend: Option<&str>,
        no_patch: bool,
    ) -> Result<(Option<BackEnd>, Settings), String> {
        let elsewhere = backend.and_then(BackEnd::parse);
        let ours = backend.filter(|_| elsewhere.is_none());
        Ok((elsewhere, Settings::of(placement, ours, no_patch)?))
    }
}

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

/// A running back end: the connection, and its process if the server has started it.
pub struct Started {
    pub remote: Remote,
    pub child: Option<Child>,
    /// The back end ends with the debugger's session.
    pub ours: bool,
    pub(super) _dir: Option<SocketDir>,
}
