//! Back ends for programs of another machine.
#![forbid(unsafe_code)]

use super::place::Place;
use std::path::PathBuf;
use ulpf_inject::settings::Settings;

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
