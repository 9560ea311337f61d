//! What the stub tells the command about itself, beside the remote serial protocol: that a thread is
//! about to exec. The work is ptrace's and is done on a thread of its own (`ulpf_inject::follow`).
#![forbid(unsafe_code)]

use crate::{Exit, Inferior};
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
use ulpf_inject::Injected;
use ulpf_inject::follow::{self, Exec, Followed};
use ulpf_inject::remains::Remains;
use ulpf_inject::settings::Settings;

const OFFER: &str = "QUlpfFollow:";

/// Offers the stub to follow its program, and more; it asks for nothing without.
pub fn offer(more: &[&str]) -> Vec<u8> {
    let mut text = format!("{OFFER}exec");
    for what in more {
        text.push(';');
        text.push_str(what);
    }
    text.into_bytes()
}

/// What has been offered to a stub since there is a session, so what it may speak of. (An answer to an offer
/// that was withdrawn may be on its way.)
#[derive(Clone, Copy, Debug, Default)]
pub struct Offered {
    exec: bool,
    fork: bool,
    /// Vfork children, of which a debugger hears; or which are followed by themselves (`spawn`).
    vfork: bool,
    spawn: bool,
    /// What the program does with ptrace.
    pub traces: bool,
}

impl Offered {
    /// Takes note of what a packet to the stub offers.
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

    /// The stub may report a child that was forked, or one of vfork.
    pub fn children(&self, vfork: bool) -> bool {
        match vfork {
            true => self.vfork,
            false => self.fork,
        }
    }
}

/// The child in a stop reply `T05…fork:pPID.TID;…` (without `p` and `.TID` where there is one process): its
/// number, and whether it is a vfork child.
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

/// A stub has told of something that was not asked for, or cannot be: whoever says that is no stub of ours, and
/// nothing else of it is to be believed. A sentence for the user.
pub fn forged(pid: i32, what: &str) -> String {
    format!(
        "the stub of process {pid} says that {what}; ulpf did not ask for that. The program, or somebody who shares its rights, speaks in the stub's name: nothing more of it is believed, and it is not watched any more."
    )
}

/// What became of a notification.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub enum Note {
    /// It was between the stub and us.
    Taken,
    /// It is for somebody else.
    Theirs,
    /// It is forged; what to tell the user.
    Forged(String),
}

/// Every notification of the stub to us begins like this.
const OURS: &[u8] = b"Ulpf";

/// What a thread hears that is not followed.
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

/// Of a program that is being killed one thread after the other is gone before it has ended itself.
const ENDING: Duration = Duration::from_millis(500);

/// It is not followed, because of `why`; or it was about to end, for which so much is waited.
async fn unless_it_ends(
    process: Process,
    stub: Channel,
    why: String,
    patience: Duration,
) -> Followed<Injected> {
    let late = Instant::now() + patience;
    while !process.has_ended() {
        if Instant::now() > late {
            let _ = io::Write::write(&mut &stub, &ulpf_rsp::frame(ALONE));
            return not_followed(&why);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Followed::Ended
}

/// The exec under way, if there is one.
pub struct Follower {
    process: Process,
    launched: bool,
    /// Of the program, and of all that it becomes and makes.
    pub settings: Settings,
    exit: Exit,
    /// Of its present stub.
    remains: Remains,
    /// What its stub may speak of.
    pub offered: Offered,
    task: Option<JoinHandle<Followed<Injected>>>,
    /// It is this vfork child's, by the number that the stub knows it by.
    child: Option<i32>,
    failed: Arc<AtomicBool>,
    /// The stub has spoken of the next one before this one was over here; and whom to answer.
    next: Option<(Vec<u8>, Channel)>,
    /// Only if it executes the file again that it runs already.
    same_only: bool,
}

/// How an exec went, and whose it was.
pub struct Done {
    /// A vfork child, by the number that the stub knows it by; else the program.
    pub child: Option<i32>,
    /// What the program has become.
    pub how: Followed<Inferior>,
}

impl Done {
    /// The parent of a vfork child that was traced rests until its stub hears this.
    pub fn last_word(&self) -> Option<Vec<u8>> {
        let traced = matches!(
            self.how,
            Followed::Into(_) | Followed::Lost { .. } | Followed::Ended
        );
        (self.child.is_some() && traced).then(|| ulpf_rsp::frame(b"vUlpfExec;over"))
    }
}

impl Follower {
    /// Of a program that executes nothing yet.
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

    /// Follows the program into itself only.
    pub fn into_itself_only(mut self) -> Follower {
        self.same_only = true;
        self
    }

    /// Follows the program into whatever it executes.
    pub fn into_any(&mut self) {
        self.same_only = false;
    }

    /// Is an exec under way?
    pub fn is_busy(&self) -> bool {
        self.task.is_some()
    }

    /// A notification from the stub at the other end of `control`.
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
                // The thread waits for our word.
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
                // (A child that is gone says nothing of its parent, which waits for our word.)
                let patience = match self.child {
                    None => ENDING,
                    Some(_) => Duration::ZERO,
                };
                tokio::spawn(unless_it_ends(self.process.clone(), stub, why, patience))
            }
        });
    }

    /// `TID;DIR;PATH`, and `;PID` of a vfork child. The error says why it is not followed.
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

    /// The last exec that the stub told us of has failed.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::SeqCst)
    }

    /// Waits for the exec under way; for ever if there is none. Safe to cancel.
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
    /// Whoever traces a thread for us is to let go of it.
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
        // kill(2) would take these for many.
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
