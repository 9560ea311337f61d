//! What the stub tells the command about itself, beside the remote serial protocol: that a thread is
//! about to exec. The work is ptrace's and is done on a thread of its own (`inject::follow`).
#![forbid(unsafe_code)]

use crate::inject::follow::{self, Exec, Followed};
use crate::inject::{Injected, process, sys};
use crate::rsp;
use crate::session::{Exit, Session};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;

/// Offers the stub to follow its program, and more; it asks for nothing without.
pub fn offer(more: &[&str]) -> Vec<u8> {
    let mut text = String::from("QUlpfFollow:exec");
    for what in more {
        text.push(';');
        text.push_str(what);
    }
    text.into_bytes()
}

/// Every notification of the stub to us begins like this.
const OURS: &[u8] = b"Ulpf";

/// The exec under way, if there is one.
pub struct Follower {
    pid: i32,
    launched: bool,
    exit: Exit,
    pidfd: Arc<OwnedFd>,
    task: Option<JoinHandle<Followed<Injected>>>,
    /// It is this vfork child's, by the number that the stub knows it by.
    child: Option<i32>,
    failed: Arc<AtomicBool>,
    /// Only if it executes the file again that it runs already.
    same_only: bool,
}

/// How an exec went, and whose it was.
pub struct Done {
    /// A vfork child, by the number that the stub knows it by; else the program.
    pub child: Option<i32>,
    pub how: Followed<Session>,
}

impl Done {
    /// The parent of a vfork child that was traced rests until its stub hears this.
    pub fn last_word(&self) -> Option<Vec<u8>> {
        let traced = matches!(
            self.how,
            Followed::Into(_) | Followed::Lost { .. } | Followed::Ended
        );
        (self.child.is_some() && traced).then(|| rsp::frame(b"vUlpfExec;over"))
    }
}

impl Follower {
    pub fn of(session: &Session) -> Follower {
        Follower {
            pid: session.pid,
            launched: session.launched,
            exit: session.exit.clone(),
            pidfd: session.pidfd(),
            task: None,
            child: None,
            failed: Arc::default(),
            same_only: false,
        }
    }

    /// Follows the program into itself only.
    pub fn into_itself_only(mut self) -> Follower {
        self.same_only = true;
        self
    }

    pub fn is_busy(&self) -> bool {
        self.task.is_some()
    }

    /// A notification from the stub at the other end of `control`. False: it is somebody else's.
    pub fn notified(&mut self, text: &[u8], control: &UnixStream) -> bool {
        if !text.starts_with(OURS) {
            return false;
        }
        if text == b"UlpfExecFailed" {
            self.failed.store(true, Ordering::SeqCst);
        } else if let Some(rest) = text.strip_prefix(b"UlpfExec:") {
            self.failed = Arc::default();
            self.child = None;
            if let Err(error) = self.begin(rest, control) {
                // The thread waits for our word.
                let _ = control.try_write(&rsp::frame(b"vUlpfExec;alone"));
                let not = Followed::Not {
                    program: "another program".into(),
                    why: format!("ulpf cannot follow it ({error})."),
                };
                self.task = Some(tokio::spawn(async { not }));
            }
        }
        true
    }

    /// `TID;DIR;PATH`, and `;PID` of a vfork child
    fn begin(&mut self, text: &[u8], control: &UnixStream) -> io::Result<()> {
        let bad = || io::Error::from(io::ErrorKind::InvalidData);
        let mut fields = text.split(|&b| b == b';');
        let mut number = || fields.next().and_then(rsp::hex_number).ok_or_else(bad);
        let (tid, dir) = (number()? as i32, number()? as u32 as i32);
        let path = fields.next().and_then(rsp::from_hex).ok_or_else(bad)?;
        let path = PathBuf::from(OsString::from_vec(path));
        self.child = fields.next().and_then(rsp::hex_number).map(|n| n as i32);
        let (pid, tid, pidfd) = match self.child {
            None => {
                let tid = process::thread_numbered(self.pid, tid).unwrap_or(tid);
                (self.pid, tid, self.pidfd.try_clone()?)
            }
            Some(number) => {
                let pid = process::child_numbered(self.pid, number).unwrap_or(number);
                (pid, pid, sys::pidfd_open(pid)?)
            }
        };
        let request = Exec {
            pid,
            tid,
            file: follow::file_of(pid, dir, &path),
            launched: self.launched && self.child.is_none(),
            child: self.child.is_some(),
            same_only: self.same_only,
            pidfd,
            stub: control.as_fd().try_clone_to_owned()?.into(),
            failed: self.failed.clone(),
        };
        self.task = Some(tokio::task::spawn_blocking(move || follow::exec(request)));
        Ok(())
    }

    /// The last exec that the stub told us of has failed.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::SeqCst)
    }

    /// Waits for the exec under way; for ever if there is none. Safe to cancel.
    pub async fn done(&mut self) -> Done {
        let how = self.outcome().await;
        let child = self.child.take();
        Done { child, how }
    }

    async fn outcome(&mut self) -> Followed<Session> {
        let Some(task) = &mut self.task else {
            return std::future::pending().await;
        };
        let followed = task.await;
        self.task = None;
        match followed {
            Ok(followed) => followed.and_then(|injected| {
                let session = match self.child {
                    None => Session::continued(injected, self.exit.clone(), self.pidfd.clone()),
                    Some(_) => Session::new(injected),
                };
                match session {
                    Ok(session) => Followed::Into(Box::new(session)),
                    Err(e) => self.lost(&e),
                }
            }),
            Err(e) => self.lost(&e.into()),
        }
    }

    fn lost(&self, error: &io::Error) -> Followed<Session> {
        let program = process::executable(self.pid).unwrap_or_default();
        Followed::Lost {
            program: program.display().to_string(),
            why: error.to_string(),
        }
    }
}
