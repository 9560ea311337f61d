//! What the server for programs of this machine and the one of the bridge share: their address, who has the
//! terminal, how they end.
#![forbid(unsafe_code)]

use super::options::Options;
use std::time::Duration;
use ulpf_host::sys;
use ulpf_inject::{ExecError, StartError};
use ulpf_listen::{Listener, Protocol, Rules};
use ulpf_say::message;

/// How a connection, or the whole server, ended.
pub enum Outcome {
    /// The debugger has gone.
    Closed,
    /// The server is done, with this exit status.
    Quit(i32),
    /// We were told to leave by a signal.
    Signalled(i32),
}

impl Outcome {
    /// The process's; it does not come back if a signal is to end it.
    pub fn status(self) -> i32 {
        match self {
            Outcome::Signalled(signal) => sys::die_by(signal),
            Outcome::Quit(status) => status,
            Outcome::Closed => 0,
        }
    }
}

/// Who has the terminal, when there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Terminal {
    /// The program, from its start to the end of the server; gdbserver's way.
    Program,
    /// The debugger (see `foreground::share_with`), except while the program runs. The server says nothing
    /// then, because the debugger does.
    Shared,
}

/// The place that the options name. The error is text for the user.
pub async fn bind(options: &Options) -> Result<Listener, String> {
    let rules = Rules {
        name: "ulpf server",
        protocol: Protocol::Remote,
        any_user: options.any_user,
    };
    let listener = Listener::bind(&options.comm, rules).await?;
    if let Some(address) = listener.beyond_this_machine() {
        let files = match options.allow_files {
            true => "; and read and write your files (--allow-files)",
            false => ". It serves no files (vFile) there; --allow-files lets it",
        };
        message!(
            "ulpf server: whoever reaches {address} has the program and can start others as you: there is no password{files}. :PORT listens on this machine only."
        );
    }
    Ok(listener)
}

/// Files are for debuggers of this machine, unless the user says otherwise.
pub fn serves_files(options: &Options, listener: &Listener) -> bool {
    options.allow_files || listener.beyond_this_machine().is_none()
}

/// Says why a program could not be started, in gdbserver's words.
pub fn report(error: &StartError, prefix: &str) {
    if let StartError::ExitedEarly {
        exec_error: Some(ExecError { program, source }),
        ..
    } = error
    {
        let source = source
            .raw_os_error()
            .map_or_else(|| source.to_string(), ulpf_host::errno::errno_text);
        message!("ulpf server: Cannot exec {program}\nulpf server: Error: {source}");
    }
    message!("{prefix}{error}");
}

/// A stub that may be our child is taken note of when it has ended.
pub fn reap_later(stub: i32) {
    if stub > 0 && tokio::runtime::Handle::try_current().is_ok() {
        tokio::spawn(async move {
            for wait in [1, 10, 100, 1000] {
                tokio::time::sleep(Duration::from_millis(wait)).await;
                if !matches!(sys::try_reap(stub), Ok(None)) {
                    break;
                }
            }
        });
    }
}
