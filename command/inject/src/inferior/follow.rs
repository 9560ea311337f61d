//! Messages from the stub beside the remote serial protocol: a thread is about to exec. The following uses ptrace, on a
//! thread of its own (`crate::follow`).
#![forbid(unsafe_code)]

use crate::Injected;
use crate::follow::{self, Exec, Followed};
use crate::inferior::{Exit, Inferior};
use crate::remains::Remains;
use crate::settings::Settings;
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream as Channel;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use ulpf_host::foreign::numbers::{self, Process};
use ulpf_host::process;

const OFFER: &str = "QUlpfFollow:";

/// The packet that offers the stub to follow its program through exec, and more; without it the stub requests nothing.
pub fn offer(more: &[&str]) -> Vec<u8> {
    let mut text = format!("{OFFER}exec");
    for what in more {
        text.push(';');
        text.push_str(what);
    }
    text.into_bytes()
}

/// All that was offered to a stub in this session, and that it may therefore report. (An answer to a withdrawn offer
/// may be on its way.)
#[derive(Clone, Copy, Debug, Default)]
pub struct Offered {
    exec: bool,
    fork: bool,
    /// Vfork children that are reported to a debugger; `spawn`: vfork children that are followed separately.
    vfork: bool,
    spawn: bool,
    /// The program's uses of ptrace.
    pub traces: bool,
}

impl Offered {
    /// Records the offers in a packet to the stub.
    pub fn note(&mut self, packet: &[u8]) {
        let Some(list) = packet.strip_prefix(OFFER.as_bytes()) else {
            return;
        };
        for what in list.split(|&b| b == b';') {
            match what {
                b"exec" => self.exec = true,
                b"fork" => self.fork = true,
                b"vfork" => self.vfork = true,
                b"spawn" => self.spawn = true,
                b"traces" => self.traces = true,
                _ => {}
            }
        }
    }

    /// Whether the stub may report a child of fork, or of vfork.
    pub fn children(&self, vfork: bool) -> bool {
        match vfork {
            true => self.vfork,
            false => self.fork,
        }
    }
}

/// The child in a stop reply `T05…fork:pPID.TID;…` (without `p` and `.TID` if there is one process): its number, and
/// whether it is a vfork child.
pub fn child_in(stop: &[u8]) -> Option<(i32, bool)> {
    let fields = stop.strip_prefix(b"T")?.get(2..)?;
    fields.split(|&b| b == b';').find_map(|field| {
        let (name, value) = field.split_at(field.iter().position(|&b| b == b':')?);
        let vfork = match name {
            b"fork" => false,
            b"vfork" => true,
            _ => return None,
        };
        let value = &value[1..];
        let value = value.strip_prefix(b"p").unwrap_or(value);
        let number = ulpf_rsp::hex_number(value.split(|&b| b == b'.').next()?)?;
        Some((numbers::of_process(number)?, vfork))
    })
}

/// Message to the user about a report that was not requested, or is impossible. Such a report does not come from our
/// stub, and its sender is not trusted any more.
pub fn forged(pid: i32, what: &str) -> String {
    format!(
        "the stub of process {pid} says that {what}; ulpf did not ask for that. The program, or somebody who shares its rights, speaks in the stub's name: nothing more of it is believed, and it is not watched any more."
    )
}

/// Result of a notification.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub enum Note {
    /// Handled here.
    Taken,
    /// For another receiver.
    Theirs,
    /// Forged; the text is for the user.
    Forged(String),
}

/// Prefix of every notification of the stub to us.
const OURS: &[u8] = b"Ulpf";

/// Answer for a thread that is not followed.
const ALONE: &[u8] = b"vUlpfExec;alone";

fn not_followed(why: &str) -> Followed<Injected> {
    Followed::Not {
        program: "another program".into(),
        why: format!("ulpf cannot follow it ({why})."),
    }
}

fn over(how: Followed<Injected>) -> JoinHandle<Followed<Injected>> {
    tokio::spawn(async { how })
}

/// When a program is killed, threads may be gone this long before the process has ended.
const ENDING: Duration = Duration::from_millis(500);

/// Result for an exec that is not followed because of `why`, or `Ended` if the process ends within `time_limit`.
async fn unless_it_ends(
    process: Process,
    stub: Channel,
    why: String,
    time_limit: Duration,
) -> Followed<Injected> {
    let late = Instant::now() + time_limit;
    while !process.has_ended() {
        if Instant::now() > late {
            let _ = io::Write::write(&mut &stub, &ulpf_rsp::frame(ALONE));
            return not_followed(&why);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Followed::Ended
}

/// Follows the execs of a program, one at a time.
pub struct Follower {
    process: Process,
    launched: bool,
    /// Settings of the program, its children, and the programs that they become.
    pub settings: Settings,
    exit: Exit,
    /// Remains of its present stub.
    remains: Remains,
    /// Reports that its stub may make.
    pub offered: Offered,
    task: Option<JoinHandle<Followed<Injected>>>,
    /// The vfork child that the exec belongs to, by the stub's number; `None` for the program.
    child: Option<i32>,
    failed: Arc<AtomicBool>,
    /// A request that arrived before this exec was over here, and the channel for its answer.
    next: Option<(Vec<u8>, Channel)>,
    /// Follow only an exec of the file that the program already runs.
    same_only: bool,
}

/// Result of an exec, and the process that it belongs to.
pub struct Done {
    /// A vfork child, by the stub's number; `None` for the program.
    pub child: Option<i32>,
    /// The result.
    pub how: Followed<Inferior>,
}

impl Done {
    /// The packet that lets a traced vfork child's parent resume.
    pub fn last_word(&self) -> Option<Vec<u8>> {
        let traced = matches!(
            self.how,
            Followed::Into(_) | Followed::Lost { .. } | Followed::Ended
        );
        (self.child.is_some() && traced).then(|| ulpf_rsp::frame(b"vUlpfExec;over"))
    }
}

impl Follower {
    /// A follower for a program without an exec under way.
    pub fn of(inferior: &Inferior) -> Follower {
        Follower {
            process: inferior.process(),
            launched: inferior.launched,
            settings: inferior.settings,
            exit: inferior.exit.clone(),
            remains: inferior.remains,
            offered: Offered::default(),
            task: None,
            child: None,
            failed: Arc::default(),
            next: None,
            same_only: false,
        }
    }

    /// Follows only execs of the same program.
    pub fn into_itself_only(mut self) -> Follower {
        self.same_only = true;
        self
    }

    /// Follows execs of any program.
    pub fn into_any(&mut self) {
        self.same_only = false;
    }

    /// Whether an exec is under way.
    pub fn is_busy(&self) -> bool {
        self.task.is_some()
    }

    /// Handles a notification from the stub at the other end of `control`.
    pub fn notified(&mut self, text: &[u8], control: &UnixStream) -> Note {
        if !text.starts_with(OURS) {
            return Note::Theirs;
        }
        let forged = |what: &str| Note::Forged(forged(self.process.pid, what));
        if text == b"UlpfExecFailed" {
            self.failed.store(true, Ordering::SeqCst);
            return Note::Taken;
        }
        let Some(rest) = text.strip_prefix(b"UlpfExec:") else {
            return forged("something has happened that no stub tells of");
        };
        let of_child = rest.split(|&b| b == b';').count() > 3;
        if !self.offered.exec || of_child && !(self.offered.vfork || self.offered.spawn) {
            return forged("a process is about to execute a program");
        }
        if self.next.is_some() {
            return forged("several threads execute programs at once");
        }
        match (control.as_fd().try_clone_to_owned(), &self.task) {
            (Ok(channel), Some(_)) => self.next = Some((rest.to_vec(), channel.into())),
            (Ok(channel), None) => self.begin((rest.to_vec(), channel.into())),
            (Err(error), task) => {
                // The thread waits for our answer.
                let _ = control.try_write(&ulpf_rsp::frame(ALONE));
                if task.is_none() {
                    let why = error.raw_os_error().map(ulpf_host::errno::errno_text);
                    self.task = Some(over(not_followed(
                        &why.unwrap_or_else(|| error.to_string()),
                    )));
                }
            }
        }
        Note::Taken
    }

    fn begin(&mut self, (text, stub): (Vec<u8>, Channel)) {
        self.failed = Arc::default();
        self.child = None;
        self.task = Some(match self.request(&text, &stub) {
            Ok(exec) => tokio::task::spawn_blocking(move || follow::exec(exec)),
            Err(why) => {
                // (The end of a child does not mean that of its parent, which waits for our answer.)
                let time_limit = match self.child {
                    None => ENDING,
                    Some(_) => Duration::ZERO,
                };
                tokio::spawn(unless_it_ends(self.process.clone(), stub, why, time_limit))
            }
        });
    }

    /// Parses `TID;DIR;PATH`, and `;PID` of a vfork child. The error says why the exec is not followed.
    fn request(&mut self, text: &[u8], stub: &Channel) -> Result<Exec, String> {
        let bad = || String::from("what the stub says of it is not understood");
        let mut fields = text.split(|&b| b == b';');
        let number = |field: Option<&[u8]>| field.and_then(ulpf_rsp::hex_number).ok_or_else(bad);
        let process = |n: u64| numbers::of_process(n).ok_or_else(bad);
        let thread = process(number(fields.next())?)?;
        let dir = number(fields.next())? as u32 as i32;
        let path = fields.next().and_then(ulpf_rsp::from_hex).ok_or_else(bad)?;
        let path = PathBuf::from(OsString::from_vec(path));
        self.child = match fields.next() {
            Some(field) => Some(process(number(Some(field))?)?),
            None => None,
        };
        let own = self.process.clone();
        let (process, tid) = match self.child {
            None => own.thread(thread).map(|tid| (own, tid)),
            Some(number) => own.vfork_child(number).map(|child| {
                let pid = child.pid;
                (child, pid)
            }),
        }
        .map_err(|stranger| stranger.to_string())?;
        Ok(Exec {
            tid,
            file: process::file_of(process.pid, dir, &path),
            process,
            launched: self.launched && self.child.is_none(),
            settings: self.settings,
            child: self.child.is_some(),
            same_only: self.same_only,
            stub: stub.try_clone().map_err(|e| e.to_string())?,
            remains: self.remains,
            failed: self.failed.clone(),
        })
    }

    /// The last exec that the stub reported has failed.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::SeqCst)
    }

    /// Waits for the exec under way; without one, for ever. Safe to cancel.
    pub async fn done(&mut self) -> Done {
        let how = self.outcome().await;
        let child = self.child.take();
        let next = self.next.take();
        let same_stub = matches!(
            how,
            Followed::Failed | Followed::Other | Followed::Not { .. }
        );
        if let (true, Some(next)) = (same_stub, next) {
            self.begin(next);
        }
        Done { child, how }
    }

    async fn outcome(&mut self) -> Followed<Inferior> {
        let Some(task) = &mut self.task else {
            return std::future::pending().await;
        };
        let followed = task.await;
        self.task = None;
        match followed {
            Ok(followed) => followed.and_then(|injected| {
                let inferior = match self.child {
                    None => Inferior::continued(injected, self.exit.clone()),
                    Some(_) => Inferior::new(injected),
                };
                match inferior {
                    Ok(inferior) => {
                        if self.child.is_none() {
                            self.remains = inferior.remains;
                        }
                        Followed::Into(Box::new(inferior))
                    }
                    Err(e) => self.lost(&e),
                }
            }),
            Err(e) => self.lost(&e.into()),
        }
    }

    fn lost(&self, error: &io::Error) -> Followed<Inferior> {
        let program = process::executable(self.process.pid).unwrap_or_default();
        Followed::Lost {
            program: program.display().to_string(),
            why: error.to_string(),
        }
    }
}

impl Drop for Follower {
    /// Makes the tracing thread release its tracee.
    fn drop(&mut self) {
        self.failed.store(true, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_in_stops() {
        assert_eq!(
            child_in(b"T05fork:p1f.1f;thread:p10.10;"),
            Some((31, false))
        );
        assert_eq!(
            child_in(b"T05thread:p10.10;core:1;vfork:p2.2;"),
            Some((2, true))
        );
        assert_eq!(child_in(b"T05fork:1f;thread:10;"), Some((31, false)));
        assert_eq!(child_in(b"T05vforkdone:;"), None);
        assert_eq!(child_in(b"W00"), None);
        // kill(2) would take these for many processes.
        for many in ["p-1.-1", "0", "pffffffff.1", "ffffffffffffffff", ""] {
            assert_eq!(child_in(format!("T05fork:{many};").as_bytes()), None);
        }
    }

    #[test]
    fn only_what_was_offered() {
        let mut offered = Offered::default();
        offered.note(b"vCont;c");
        assert!(!offered.exec && !offered.children(false) && !offered.children(true));
        offered.note(&offer(&["fork"]));
        assert!(offered.exec && offered.children(false) && !offered.children(true));
        offered.note(&offer(&[]));
        assert!(offered.children(false), "its answer may be on its way");
    }
}
