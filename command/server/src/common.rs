//! Shared by the server for programs of this machine and the server of the bridge: address, terminal, exit.
#![forbid(unsafe_code)]

use super::options::Options;
use std::time::Duration;
use ulpf_host::listen::{Listener, Protocol, Rules};
use ulpf_host::say::message;
use ulpf_host::sys;
use ulpf_inject::{ExecError, StartError};

/// How a connection, or the whole server, ended.
pub enum Outcome {
    /// The debugger has gone.
    Closed,
    /// The server is done, with this exit status.
    Quit(i32),
    /// A signal told the server to exit.
    Signalled(i32),
}

impl Outcome {
    /// The exit status. Does not return if a signal is to end the process.
    pub fn status(self) -> i32 {
        match self {
            Outcome::Signalled(signal) => sys::die_by(signal),
            Outcome::Quit(status) => status,
            Outcome::Closed => 0,
        }
    }
}

/// The owner of the terminal, if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Terminal {
    /// The program, from its start to the end of the server, as with gdbserver.
    Program,
    /// The debugger (see `foreground::share_with`), except while the program runs. The server then prints no messages,
    /// because the debugger does.
    Shared,
}

/// Binds the address of the options.
///
/// # Errors
///
/// Text for the user.
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

/// Whether vFile is served. By default only debuggers of this machine may read files; the user may allow others.
pub fn serves_files(options: &Options, listener: &Listener) -> bool {
    options.allow_files || listener.beyond_this_machine().is_none()
}

/// Prints why a program could not be started, in gdbserver's words.
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

/// Reaps a stub that may be our child when it has ended.
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
