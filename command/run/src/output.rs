//! Where hits go, and what is said before the first one.

use super::options::WatchArgs;
use super::watches::Watch;
use anyhow::{Context, Result};
use serde::Serialize;
use std::fs::File;
use std::io::{self, IsTerminal, Write, stderr, stdout};
use ulpf_say::json::{self, Address};
use ulpf_say::{say, say_json};
use ulpf_session::armed::Armed;
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
        let look = Look::of(options.json, is_terminal);
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
