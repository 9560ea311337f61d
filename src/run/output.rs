//! Where hits go, and what is said before the first one.

use super::format::{Look, Quoted};
use super::options::WatchArgs;
use super::summary::kind;
use super::watches::{Armed, Watch};
use crate::foreign::text::lines;
use anyhow::{Context, Result};
use std::fs::File;
use std::io::{self, IsTerminal, Write, stderr, stdout};
use std::sync::atomic::{AtomicBool, Ordering};

/// Standard error carries the JSON lines: whatever else is said there must be one as well.
static JSON_ON_STDERR: AtomicBool = AtomicBool::new(false);

/// Tells the user something on standard error. (Not `eprintln!`, which panics when nobody listens.)
pub fn say(text: &str) {
    let line = match JSON_ON_STDERR.load(Ordering::Relaxed) {
        true => format!("{{\"type\":\"message\",\"text\":{}}}\n", Quoted(text)),
        false => format!("ulpf: {}\n", lines(text)),
    };
    let _ = stderr().write_all(line.as_bytes());
}

/// Decides how [`say`] says it; before anything is said.
pub fn speak_as(options: &WatchArgs) {
    say_json(options.json && options.log.is_none());
}

pub fn say_json(json: bool) {
    JSON_ON_STDERR.store(json, Ordering::Relaxed);
}

/// How lines look on a terminal, or elsewhere.
pub fn look_of(json: bool, is_terminal: bool) -> Look {
    let plain = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty())
        || std::env::var_os("TERM").is_none_or(|t| t == "dumb");
    match () {
        _ if json => Look::Json,
        _ if is_terminal && !plain => Look::Coloured,
        _ => Look::Plain,
    }
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
    to: Box<dyn Write>,
    broken: Option<io::Error>,
}

impl Output {
    pub fn open(options: &WatchArgs) -> Result<Output> {
        let (to, is_terminal, is_stderr): (Box<dyn Write>, bool, bool) = match &options.log {
            None => (Box::new(stderr()), stderr().is_terminal(), true),
            Some(path) if path.as_os_str() == "-" => {
                (Box::new(stdout()), stdout().is_terminal(), false)
            }
            Some(path) => {
                let file = File::create(path)
                    .with_context(|| format!("cannot write the log {}", path.display()))?;
                (Box::new(file), false, false)
            }
        };
        let look = look_of(options.json, is_terminal);
        Ok(Output {
            look,
            is_stderr,
            quiet: options.quiet,
            changes_only: options.changes_only,
            to,
            broken: None,
        })
    }

    /// Writes and empties `text`. After a failure nothing more is written.
    pub fn write(&mut self, text: &mut String) {
        if !text.is_empty() && self.broken.is_none() {
            let written = self
                .to
                .write_all(text.as_bytes())
                .and_then(|()| self.to.flush());
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
    pub fn broken(&self) -> Option<&io::Error> {
        self.broken.as_ref()
    }

    /// Says what is watched (JSON), and on standard error what is not.
    pub fn start(&mut self, watches: &[Watch], pid: i32, options: &WatchArgs) {
        let mut text = String::new();
        if self.look == Look::Json {
            text += &format!(
                "{{\"type\":\"start\",\"pid\":{pid},\"watches\":{}}}\n",
                watches.len()
            );
        }
        for (i, watch) in watches.iter().enumerate() {
            let spec = &watch.spec;
            match (&watch.armed, &watch.watched) {
                (Armed::Yes(_), Some(w)) => {
                    if self.look == Look::Json {
                        let ty = w
                            .type_name()
                            .map_or("null".into(), |t| Quoted(t).to_string());
                        text += &format!(
                            "{{\"type\":\"watch\",\"watch\":{},\"spec\":{},\"kind\":\"{}\",\"addr\":\"{:#x}\",\"len\":{},\"value_type\":{ty}}}\n",
                            i + 1,
                            Quoted(&spec.text),
                            kind(w.kind),
                            w.addr,
                            w.len
                        );
                    }
                    if let Some(note) = &w.note {
                        say!("{note}");
                    }
                }
                (Armed::Pending(problem), _) => {
                    say!(
                        "`{spec}` waits: {}; it will be watched as soon as the program loads that",
                        problem.why
                    );
                }
                (Armed::No(problem), _) => {
                    say!("{problem}");
                    if self.look == Look::Json && options.keep_going {
                        text += &format!(
                            "{{\"type\":\"refused\",\"watch\":{},\"spec\":{},\"what\":{},\"why\":{},\"what_to_do\":{}}}\n",
                            i + 1,
                            Quoted(&spec.text),
                            Quoted(&problem.what),
                            Quoted(&problem.why),
                            Quoted(&problem.what_to_do)
                        );
                    }
                }
                (Armed::Yes(_), None) | (Armed::Off, _) => {}
            }
        }
        self.write(&mut text);
    }
}
