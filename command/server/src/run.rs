//! vRun: the program and its arguments.
//!
//! GDB up to 16 splits the arguments of its `run` into words and removes quotes and backslashes before it sends them.
//! `*.c` and `'*.c'` become equal then, and so do `< in` and `'<' in`. gdbserver keeps each word as it is. A shell
//! needs the original text. GDB 17 sends it (`single-inf-arg`); `ulpf gdb` asks GDB for it. While GDB waits for the
//! answer to vRun, the plugin answers this one question (gdb-plugin/ulpf/arguments.py).
#![forbid(unsafe_code)]

use super::common::report;
use super::requests::one_line;
use super::state::Server;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use ulpf_host::say::message;
use ulpf_inject::Arguments;

/// Time limit for GDB's answer; it has nothing else to do meanwhile.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Limit in bytes: more than Linux allows for a program's arguments.
const LONGEST: u64 = 8 << 20;

impl Server {
    /// `vRun;PROGRAM;ARG…`, all in hex. An empty program means the previous one.
    pub(super) async fn run(&mut self, packet: &[u8]) -> Vec<u8> {
        let words: Option<Vec<Vec<u8>>> = packet[b"vRun;".len()..]
            .split(|&b| b == b';')
            .map(ulpf_rsp::from_hex)
            .collect();
        let Some(words) = words.filter(|w| w.iter().all(|w| !w.contains(&0))) else {
            return b"E01".into();
        };
        let mut words = words.into_iter().map(OsString::from_vec);
        let program = words.next().unwrap_or_default();
        let args = self.arguments(words.collect()).await;
        if !program.is_empty() {
            self.program = Some((program, args));
        } else if let Some((_, old)) = &mut self.program {
            *old = args;
        } else {
            return b"E.No program has been named. Use `set remote exec-file PATH`.".into();
        }
        // With process numbers there may be several processes; without them, only one.
        if !self.multiprocess {
            self.end_all().await;
        }
        match self.start().await {
            Ok(()) => self.first_stop().await,
            Err(error) => {
                report(&error, "ulpf server: ");
                // GDB shows this text to the user.
                format!("E.{}", one_line(&error.to_string())).into_bytes()
            }
        }
    }

    async fn arguments(&self, words: Vec<OsString>) -> Arguments {
        if self.one_argument {
            return match words.into_iter().next() {
                Some(text) => Arguments::Text(text),
                None => Arguments::default(),
            };
        }
        let Some(socket) = &self.options.ask_arguments else {
            return Arguments::Words(words);
        };
        match tokio::time::timeout(TIMEOUT, ask(socket)).await {
            Ok(Ok(text)) => Arguments::Text(text),
            // For example, GDB without Python. Words without shell syntax are right in any case.
            _ => {
                if words.iter().any(|word| ulpf_inject::quote(word) != *word) {
                    message!(
                        "ulpf gdb: the arguments are taken as words, without a shell's expansions and redirections: \
                         GDB has not told their text (has it no Python?)."
                    );
                }
                Arguments::Words(words)
            }
        }
    }

    /// The command line's program and arguments, for GDB's `args`: `S;PROGRAM;ARGUMENTS;` in hex, or `U`.
    pub(super) fn exec_and_args(&self) -> Vec<u8> {
        use crate::options::Target::Program;
        let Program { program, args } = &self.options.target else {
            return b"U".into();
        };
        let text = Arguments::Words(args.clone()).shell_text();
        let hex = |text: &OsString| ulpf_rsp::to_hex(text.as_encoded_bytes());
        format!("S;{};{};", hex(program), hex(&text)).into_bytes()
    }
}

/// Reads `=` and the text, or nothing if GDB does not know it.
async fn ask(socket: &Path) -> std::io::Result<OsString> {
    let mut said = Vec::new();
    let stream = UnixStream::connect(socket).await?;
    stream.take(LONGEST).read_to_end(&mut said).await?;
    match said.split_first() {
        Some((b'=', text)) if !text.contains(&0) => Ok(OsString::from_vec(text.into())),
        _ => Err(std::io::ErrorKind::InvalidData.into()),
    }
}
