//! Debug information from servers, by build ID (debuginfod). It is used if the user sets servers in `DEBUGINFOD_URLS`.
//!
//! elfutils' own client fetches the files. It applies the cache, timeouts, certificates and settings known from GDB
//! (`DEBUGINFOD_CACHE_PATH`, `DEBUGINFOD_TIMEOUT`, `DEBUGINFOD_MAXSIZE`), and its files belong to the user. A server
//! may send anything, so the caller must compare the file's build ID.

use crate::source::MOST_BUILD_ID;
use std::ffi::OsString;
use std::fmt::Write;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;
use ulpf_host::programs;
use ulpf_host::signals::asked_to_end;

const SERVERS: &str = "DEBUGINFOD_URLS";
const CLIENT: &str = "debuginfod-find";

/// Polling interval while the client runs.
const TICK: Duration = Duration::from_millis(10);

/// The file with this build ID, if a server has it. Blocks at most until the client's timeout, or until a signal tells `ulpf`
/// to end.
///
/// # Errors
///
/// Why no server could be queried.
pub fn debug_file(id: &[u8]) -> Result<Option<PathBuf>, String> {
    let named = std::env::var_os(SERVERS).is_some_and(|urls| !urls.is_empty());
    if !named || id.is_empty() || id.len() > MOST_BUILD_ID {
        return Ok(None);
    }
    let client = programs::find(CLIENT);
    let client = client.ok_or_else(|| {
        format!("{SERVERS} names servers of debug information, and {CLIENT} is not installed")
    })?;
    let mut name = String::new();
    for byte in id {
        let _ = write!(name, "{byte:02x}");
    }
    let mut command = Command::new(client);
    command.args(["debuginfo", &name]);
    command.stdin(Stdio::null()).stderr(Stdio::null());
    let failed = |why: std::io::Error| format!("{CLIENT}: {why}");
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(failed)?;
    while child.try_wait().map_err(failed)?.is_none() {
        if asked_to_end() {
            let _ = child.kill();
        }
        std::thread::sleep(TICK);
    }
    // (One line, which fits into the pipe.)
    let mut line = Vec::new();
    if let Some(mut out) = child.stdout.take() {
        out.read_to_end(&mut line).map_err(failed)?;
    }
    let line = line.trim_ascii_end().to_vec();
    Ok((!line.is_empty()).then(|| PathBuf::from(OsString::from_vec(line))))
}
