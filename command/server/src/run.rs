//! vRun: what is started, with which arguments.
//!
//! GDB up to 16 splits the arguments of its `run` into words before it sends them, and takes quotes and
//! backslashes out: `*.c` and `'*.c'` are one then, and so are `< in` and `'<' in`. gdbserver keeps each word as it is.
//! A shell's work can only be done with the text, which GDB 17 sends (`single-inf-arg`) and `ulpf gdb` asks GDB for:
//! the plugin listens for this question alone (gdb-plugin/ulpf/arguments.py), while GDB waits for the answer to vRun.
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
use ulpf_inject::Arguments;
use ulpf_say::message;

/// How long GDB may take to answer; it has nothing else to do meanwhile.
const PATIENCE: Duration = Duration::from_secs(5);
/// More than Linux lets a program's arguments have.
const LONGEST: u64 = 8 << 20;

impl Server {
    /// `vRun;PROGRAM;ARG…`, all in hex; an empty program means the one before.
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
        // Of several processes each one has its number; without numbers there can be one.
        if !self.multiprocess {
            self.kill_everybody().await;
        }
        match self.start().await {
            Ok(()) => self.first_stop().await,
            Err(error) => {
                report(&error, "ulpf server: ");
                // GDB shows it to the user.
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
        match tokio::time::timeout(PATIENCE, ask(socket)).await {
            Ok(Ok(text)) => Arguments::Text(text),
            // GDB without Python, say. A word that no shell would touch is right in any case.
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

    /// What the command line has named, for GDB's `args`: `S;PROGRAM;ARGUMENTS;` in hex, or `U`.
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

/// `=` and the text; nothing if GDB cannot tell.
async fn ask(socket: &Path) -> std::io::Result<OsString> {
    let mut said = Vec::new();
    let stream = UnixStream::connect(socket).await?;
    stream.take(LONGEST).read_to_end(&mut said).await?;
    match said.split_first() {
        Some((b'=', text)) if !text.contains(&0) => Ok(OsString::from_vec(text.into())),
        _ => Err(std::io::ErrorKind::InvalidData.into()),
    }
}
