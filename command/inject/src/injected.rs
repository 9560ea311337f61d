//! A program with the stub inside.
#![forbid(unsafe_code)]

use crate::error::StartError;
use crate::load::Loaded;
use crate::remains::Remains;
use crate::settings::Settings;
use std::os::unix::net::UnixStream;
use ulpf_area::shared::{Clocks, SharedArea};
use ulpf_host::foreign::numbers::Process;

/// A program with the stub inside, with every thread stopped in the stub.
#[derive(Debug)]
pub struct Injected {
    pub process: Process,
    /// 0 if unknown.
    pub stub_pid: i32,
    /// Our end of the control channel: the remote serial protocol in no-ack mode.
    pub control: UnixStream,
    pub shared: SharedArea,
    /// We started it (and are its parent), rather than attached to it.
    pub launched: bool,
    pub settings: Settings,
    /// Warnings for the user; full sentences.
    pub warnings: Vec<String>,
    /// Remains of the stub that must be removed after a detach.
    pub remains: Remains,
}

/// Completes a start; `since` was read when it began.
pub(crate) fn finish(
    process: Process,
    loaded: Loaded,
    since: Clocks,
    launched: bool,
    settings: Settings,
    warnings: Vec<String>,
) -> Result<Injected, StartError> {
    let shared = SharedArea::map(loaded.shared, process.pid, since)
        .map_err(|e| StartError::step("map the shared area", e))?;
    // The program can overwrite the number that the stub has left.
    let stub = process.in_its_memory(loaded.stub_pid);
    Ok(Injected {
        process,
        stub_pid: stub.map_or(0, |stub| stub.pid),
        control: loaded.control,
        shared,
        launched,
        settings,
        warnings,
        remains: loaded.remains,
    })
}
