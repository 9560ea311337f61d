//! Where hits go, and what is said before the first one.

use super::options::WatchArgs;
use super::watches::Watch;
use anyhow::{Context, Result, bail};
use serde::Serialize;
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, stderr, stdout};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use ulpf_host::sys;
use ulpf_log::Word;
use ulpf_say::json::{self, Address};
use ulpf_say::{lines, say, say_json};
use ulpf_session::armed::Armed;
use ulpf_session::hit::entry::CSV_HEAD;
use ulpf_session::hit::log::Look;

/// Decides how [`say`] says it; before anything is said.
pub fn speak_as(options: &WatchArgs) {
    say_json(options.json && options.log.is_none());
}

/// Where hits go.
pub struct Output {
    pub look: Look,
    /// The log shares standard error with what else is said.
    pub is_stderr: bool,
    /// No line per hit.
    pub quiet: bool,
    /// No line for writes that change nothing.
    pub changes_only: bool,
    /// It goes where others may write to as well, and what is too much at once is torn.
    pieces: bool,
    to: File,
    /// Hits go here, past us; what we write is words beside them.
    pub compact: Option<ulpf_log::Log>,
    broken: Option<io::Error>,
}

/// A file of this name is a compact log.
fn is_compact(path: &Path) -> bool {
    path.extension()
        .is_some_and(|e| e.eq_ignore_ascii_case("ulpf"))
}

/// How a log looks that goes to a file of this name.
fn look_of(path: &Path, json: bool) -> Result<Look> {
    let end = path.extension().map(|e| e.to_string_lossy().to_lowercase());
    match end.as_deref() {
        _ if json => Ok(Look::Json),
        None | Some("txt" | "log" | "out" | "err") => Ok(Look::Plain),
        Some("jsonl" | "ndjson" | "ulpf") => Ok(Look::Json),
        Some("csv") => Ok(Look::Csv),
        Some(end) => bail!(
            "cannot write the log {}: nobody knows what is written to a file called .{end}; call it .txt or .log (lines), .jsonl (JSON lines), .csv (a table) or .ulpf (a compact log), or say --json",
            path.display()
        ),
    }
}

/// Who else writes to the file writes behind, not over what we have written.
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
        let kind = to.metadata().map(|m| m.file_type());
        let compact = match &options.log {
            Some(path) if is_compact(path) => {
                let begun = to.try_clone().and_then(ulpf_log::Log::begin);
                Some(begun.with_context(|| format!("cannot write the log {}", path.display()))?)
            }
            _ => None,
        };
        let mut output = Output {
            look,
            is_stderr,
            quiet: options.quiet,
            changes_only: options.changes_only,
            pieces: kind.is_ok_and(|kind| kind.is_fifo() || kind.is_socket()),
            to,
            compact,
            broken: None,
        };
        if look == Look::Csv {
            output.write(&mut CSV_HEAD.to_string());
        }
        Ok(output)
    }

    /// Writes and empties `text`, which is whole lines. After a failure nothing more is written.
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
            let written = match self.pieces {
                true => lines::put_pieces(&mut self.to, text),
                false => lines::put(&mut self.to, text.as_bytes()),
            };
            if let Err(error) = written {
                // Now, not at the end of a program that may run for days.
                say(&format!(
                    "the log ends here: {error}; the program goes on, and its hits are counted"
                ));
                self.broken = Some(error);
            }
        }
        text.clear();
    }

    /// Why the log is incomplete, if it could not be written.
    pub fn broken(&self) -> Option<String> {
        let compact = self.compact.as_ref().and_then(ulpf_log::Log::broken);
        let broken = self.broken.as_ref().map(io::Error::to_string);
        broken.or(compact.map(|e| e.to_string()))
    }

    /// Nothing is written behind this.
    pub fn end(&self) {
        if let Some(log) = &self.compact {
            log.words([Word::End]);
        }
    }

    /// Says what is watched (JSON), and on standard error what is not.
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
