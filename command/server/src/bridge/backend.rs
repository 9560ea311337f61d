//! Who serves a program that is not this machine's, and what there is of it once it runs.
#![forbid(unsafe_code)]

use super::link::{Link, Place};
use std::path::PathBuf;
use tokio::process::Child;
use ulpf_inject::settings::Settings;
use ulpf_listen::socket_dir::SocketDir;

/// Who serves the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackEnd {
    /// `ulpf-sim`, a process of its own.
    Sim,
    /// gem5, behind its remote port: `--gem5`, or `gem5.opt` in PATH.
    Gem5(Option<PathBuf>),
    /// One that is there already, and listens.
    At(Place),
}

impl BackEnd {
    /// `None`: it is none that is reached over the bridge.
    pub fn parse(name: &str) -> Option<BackEnd> {
        match name {
            "sim" => Some(BackEnd::Sim),
            "gem5" => Some(BackEnd::Gem5(None)),
            _ => Some(BackEnd::At(Place::parse(name.strip_prefix("bridge:")?))),
        }
    }

    /// By the words of the user: who serves a program, and how our own stub is to work if nobody else does.
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

/// A back end, its process if that is ours, and where they meet.
pub struct Started {
    pub link: Link,
    pub child: Option<Child>,
    /// It ends with the debugger's session.
    pub ours: bool,
    pub(super) _dir: Option<SocketDir>,
}
