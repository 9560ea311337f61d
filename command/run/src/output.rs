//! Output of hits, and the messages before the first one.

use super::options::WatchArgs;
use super::watches::Watch;
use anyhow::{Context, Result, bail};
use serde::Serialize;
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, stderr, stdout};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use ulpf_host::say::json::{self, Address};
use ulpf_host::say::{Writer, atomic_lines, of_stderr, say, say_json};
use ulpf_host::sys;
use ulpf_session::armed::Armed;
use ulpf_session::hit::entry::CSV_HEAD;
use ulpf_session::hit::log::Look;
use ulpf_session::log::Word;
use ulpf_session::suffix::{Kind, kind_of};

/// Sets the form of [`say()`]; call it before the first message.
pub fn speak_as(options: &WatchArgs) {
    say_json(options.json && options.log.is_none());
}

/// Output of hits.
pub struct Output {
    pub look: Look,
    /// The log shares standard error with other messages.
    pub is_stderr: bool,
    /// No line per hit.
    pub quiet: bool,
    /// No line for silent stores.
    pub changes_only: bool,
    to: To,
    /// Hits go here without passing through us; we write only words beside them.
    pub compact: Option<ulpf_session::log::Log>,
    broken: Option<io::Error>,
}

/// Where the text goes.
enum To {
    File(File),
    /// A terminal, pipe or socket.
    Writer(Writer),
}

/// Whether a file of this name is a compact log.
fn is_compact(path: &Path) -> bool {
    kind_of(path) == Some(Kind::Compact)
}

/// The form of a log in a file of this name.
fn look_of(path: &Path, json: bool) -> Result<Look> {
    match kind_of(path) {
        _ if json => Ok(Look::Json),
        Some(Kind::Text) => Ok(Look::Plain),
        Some(Kind::Jsonl | Kind::Compact) => Ok(Look::Json),
        Some(Kind::Csv) => Ok(Look::Csv),
        Some(Kind::Trace) | None => bail!(
            "cannot write the log {}: ulpf has no format for a file called .{}; call it .txt or .log (lines), .jsonl (JSON lines), .csv (a table) or .ulpf (a compact log), or say --json",
            path.display(),
            path.extension().unwrap_or_default().display()
        ),
    }
}

/// Opens the file for appending, so that other writers do not overwrite our output.
fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .custom_flags(libc::O_APPEND | libc::O_TRUNC)
        .open(path)
}

impl Output {
    pub fn open(options: &WatchArgs) -> Result<Output> {
        let standard = |to: BorrowedFd, is_stderr| {
            let is_terminal = to.is_terminal();
            let to = File::from(to.try_clone_to_owned()?);
            anyhow::Ok((to, Look::of(options.json, is_terminal), is_stderr))
        };
        let (to, look, is_stderr) = match &options.log {
            None => standard(stderr().as_fd(), true)?,
            Some(path) if path.as_os_str() == "-" => standard(stdout().as_fd(), false)?,
            Some(path) if options.json && is_compact(path) => bail!(
                "{} would be a compact log, which is no JSON: leave --json out, and `ulpf log --json` writes lines of it; or call it .jsonl",
                path.display()
            ),
            Some(path) => {
                let look = look_of(path, options.json)?;
                let file = create(path)
                    .with_context(|| format!("cannot write the log {}", path.display()))?;
                (file, look, false)
            }
        };
        let compact = match &options.log {
            Some(path) if is_compact(path) => {
                let begun = to.try_clone().and_then(ulpf_session::log::Log::begin);
                Some(begun.with_context(|| format!("cannot write the log {}", path.display()))?)
            }
            _ => None,
        };
        // Lines of the log and messages have one order.
        let writer = match of_stderr().filter(|_| is_stderr) {
            Some(writer) => Some(writer.clone()),
            None => Writer::of(to.as_fd()).context("cannot write the log")?,
        };
        let to = writer.map_or(To::File(to), To::Writer);
        let mut output = Output {
            look,
            is_stderr,
            quiet: options.quiet,
            changes_only: options.changes_only,
            to,
            compact,
            broken: None,
        };
        if look == Look::Csv {
            output.write(&mut CSV_HEAD.to_string());
        }
        Ok(output)
    }

    /// Writes and empties `text`, which consists of whole lines. After a failure, later output is dropped.
    pub fn write(&mut self, text: &mut String) {
        if let Some(log) = &self.compact {
            let tsc = sys::tsc();
            let said = |line: &'_ str| Word::Said {
                tsc,
                line: line.to_string().into(),
            };
            log.words(text.lines().map(said));
            return text.clear();
        }
        if !text.is_empty() && self.broken.is_none() {
            let written = match &mut self.to {
                To::File(to) => atomic_lines::put(to, text.as_bytes()),
                To::Writer(writer) => {
                    writer.write(text);
                    writer.broken().map_or(Ok(()), Err)
                }
            };
            if let Err(error) = written {
                self.breaks(error);
            }
        }
        text.clear();
    }

    /// Whether the reader of the log takes nothing for now, and more text should wait.
    pub fn is_full(&self) -> bool {
        matches!(&self.to, To::Writer(writer) if writer.is_full())
    }

    /// Waits until all text is written.
    pub fn finish(&mut self) {
        if let To::Writer(writer) = &self.to {
            writer.finish();
            if let Some(error) = writer.broken().filter(|_| self.broken.is_none()) {
                self.breaks(error);
            }
        }
    }

    /// Reported now: the program may run for days.
    fn breaks(&mut self, error: io::Error) {
        say(&format!(
            "the log ends here: {error}; the program goes on, and its hits are counted"
        ));
        self.broken = Some(error);
    }

    /// The error that made the log incomplete, if any.
    pub fn broken(&self) -> Option<String> {
        let compact = self
            .compact
            .as_ref()
            .and_then(ulpf_session::log::Log::broken);
        let broken = self.broken.as_ref().map(io::Error::to_string);
        broken.or(compact.map(|e| e.to_string()))
    }

    /// Marks the end of the log; no more output may follow.
    pub fn end(&self) {
        if let Some(log) = &self.compact {
            log.words([Word::End]);
        }
    }

    /// Writes the watches to the log (JSON), and refused ones to standard error.
    pub fn start(&mut self, watches: &[Watch], pid: i32, options: &WatchArgs) {
        let mut text = String::new();
        let json = self.look == Look::Json;
        if json {
            let start = Start {
                r#type: "start",
                pid,
                watches: watches.len(),
            };
            json::append(&mut text, &start);
        }
        for (i, watch) in watches.iter().enumerate() {
            let spec = &watch.spec;
            match &watch.armed {
                Armed::Yes(_) => {
                    let places = watch.watched.iter().filter(|_| json);
                    for w in places {
                        let watch = Watching {
                            r#type: "watch",
                            watch: i + 1,
                            spec: &spec.text,
                            kind: w.kind.word(),
                            addr: Address(w.addr),
                            len: w.len,
                            follows: w.path.is_some().then_some(true),
                            value_type: w.type_name(),
                        };
                        json::append(&mut text, &watch);
                    }
                    let note = watch.watched.iter().find_map(|w| w.note.as_ref());
                    if let Some(note) = note {
                        say!("{note}");
                    }
                }
                Armed::Pending(problem) => {
                    say!(
                        "`{spec}` waits: {}; it will be watched as soon as the program loads that",
                        problem.why
                    );
                }
                Armed::No(problem) => {
                    say!("{problem}");
                    if json && options.keep_going {
                        let refused = Refused {
                            r#type: "refused",
                            watch: i + 1,
                            spec: &spec.text,
                            what: &problem.what,
                            why: &problem.why,
                            what_to_do: &problem.what_to_do,
                        };
                        json::append(&mut text, &refused);
                    }
                }
                Armed::Off => {}
            }
        }
        self.write(&mut text);
    }
}

// docs/json.md describes these.

#[derive(Serialize)]
struct Start {
    r#type: &'static str,
    pid: i32,
    watches: usize,
}

#[derive(Serialize)]
struct Watching<'a> {
    r#type: &'static str,
    watch: usize,
    spec: &'a str,
    kind: &'static str,
    addr: Address,
    len: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    follows: Option<bool>,
    value_type: Option<&'a str>,
}

#[derive(Serialize)]
struct Refused<'a> {
    r#type: &'static str,
    watch: usize,
    spec: &'a str,
    what: &'a str,
    why: &'a str,
    what_to_do: &'a str,
}
