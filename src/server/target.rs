//! The program that is served, as the relay sees it: frames to and from the stub, and its end.
#![forbid(unsafe_code)]

use super::watches::{self, LazyWatches};
use crate::inject::process;
use crate::rsp::{self, Decoder, Event};
use crate::session::{Ending, Exit, Session};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;

/// Something from the program's side.
#[derive(Debug, PartialEq, Eq)]
pub enum News {
    Reply(Vec<u8>),
    Notification(Vec<u8>),
    Ended(Ending),
    /// The program has executed another one, and the stub went with its memory; what it runs now.
    Replaced(String),
    /// The stub has gone, the program has not.
    StubLost,
}

pub struct Target {
    pub pid: i32,
    /// The number that the program has for itself, and the stub reports: another one in a container.
    pub number: i32,
    pub stub_pid: i32,
    pub launched: bool,
    pub exit: Exit,
    /// Between a resume request and its stop reply.
    pub running: bool,
    /// There is no stub any more; why, for the debugger. Only waiting and killing is left.
    pub lost: Option<String>,
    pub watches: LazyWatches,
    replaced: bool,
    control: UnixStream,
    decoder: Decoder,
    queue: VecDeque<News>,
    pidfd: Arc<OwnedFd>,
}

impl Target {
    pub fn new(session: Session) -> Target {
        let pidfd = session.pidfd();
        Target {
            pid: session.pid,
            number: process::own_number(session.pid).unwrap_or(session.pid),
            stub_pid: session.stub_pid,
            launched: session.launched,
            exit: session.exit,
            running: false,
            lost: None,
            watches: LazyWatches::default(),
            replaced: false,
            control: session.control,
            decoder: Decoder::default(),
            queue: VecDeque::new(),
            pidfd,
        }
    }

    pub async fn send(&mut self, payload: &[u8]) -> io::Result<()> {
        self.control.write_all(&rsp::frame(payload)).await
    }

    /// Asks for a stop; a stop reply follows if the program runs.
    pub async fn interrupt(&mut self) -> io::Result<()> {
        self.control.write_all(&[rsp::INTERRUPT]).await
    }

    /// The next thing that happens. Safe to cancel.
    pub async fn news(&mut self) -> News {
        loop {
            if let Some(news) = self.queue.pop_front() {
                return news;
            }
            let eof = tokio::select! {
                biased;
                ready = self.control.readable(), if self.lost.is_none() => ready.is_err() || !self.drain(),
                ending = self.exit.wait() => {
                    // What the stub said before the end comes first.
                    self.drain();
                    self.queue.push_back(News::Ended(ending));
                    continue;
                }
            };
            if eof && self.queue.is_empty() {
                return self.stub_has_gone().await;
            }
        }
    }

    /// The stub goes when the program goes (perhaps a moment before we hear of it), or with the
    /// program's memory when it executes another program; else it has crashed.
    async fn stub_has_gone(&mut self) -> News {
        for _ in 0..300 {
            if let Some(program) = process::without_mapping(self.pid, "/memfd:ulpf-shared") {
                let program = program.display().to_string();
                self.lost = Some(format!(
                    "E.Process {} has executed {program}, which this version of ulpf does not follow: it runs on unwatched.",
                    self.pid
                ));
                self.replaced = true;
                return News::Replaced(program);
            }
            if let Ok(ending) =
                tokio::time::timeout(Duration::from_millis(10), self.exit.wait()).await
            {
                return News::Ended(ending);
            }
        }
        self.lost = Some(format!(
            "E.The watchpoint stub in process {} has ended unexpectedly, so the program can neither be inspected nor resumed. Kill it (`kill`) and start it again; please report this as a bug of ulpf.",
            self.pid
        ));
        News::StubLost
    }

    /// Takes everything that is there. False: end of file.
    fn drain(&mut self) -> bool {
        let mut buf = [0; 16384];
        loop {
            match self.control.try_read(&mut buf) {
                Ok(0) => return false,
                Ok(n) => {
                    let queue = &mut self.queue;
                    self.decoder.feed(&buf[..n], |e| match e {
                        Event::Packet(p) => queue.push_back(News::Reply(p)),
                        Event::Notification(p) => queue.push_back(News::Notification(p)),
                        _ => {}
                    });
                }
                Err(e) => return e.kind() == io::ErrorKind::WouldBlock,
            }
        }
    }

    /// One request and its one reply; for our own requests, with nobody else's in flight.
    pub async fn request(&mut self, payload: &[u8]) -> Option<Vec<u8>> {
        self.send(payload).await.ok()?;
        loop {
            match tokio::time::timeout(Duration::from_secs(30), self.news())
                .await
                .ok()?
            {
                News::Reply(reply) => return Some(reply),
                News::Notification(_) => {}
                News::Ended(_) | News::Replaced(_) | News::StubLost => return None,
            }
        }
    }

    /// Tells the stub of the watches that the debugger has taken away for good.
    pub async fn settle_watches(&mut self) {
        let overdue = self.watches.overdue();
        for batch in overdue.chunks(watches::BATCH) {
            let frames: Vec<u8> = batch.iter().flat_map(|p| rsp::frame(p)).collect();
            if self.control.write_all(&frames).await.is_err() {
                return; // its end shows with the next request
            }
            for _ in batch {
                if !matches!(self.news().await, News::Reply(_)) {
                    return;
                }
            }
        }
    }

    /// Brings a running program to a stop that no debugger hears of. False: it has ended or cannot be
    /// stopped.
    pub async fn stop(&mut self) -> bool {
        if !self.running {
            return self.lost.is_none() && self.exit.now().is_none();
        }
        if self.interrupt().await.is_err() {
            return false;
        }
        loop {
            match tokio::time::timeout(Duration::from_secs(10), self.news()).await {
                // Console output of the program, not its stop.
                Ok(News::Reply(reply)) if is_output(&reply) => {}
                Ok(News::Reply(_)) => {
                    self.running = false;
                    return true;
                }
                Ok(News::Notification(_)) => {}
                Ok(News::Ended(_) | News::Replaced(_) | News::StubLost) | Err(_) => return false,
            }
        }
    }

    pub fn is_replaced(&self) -> bool {
        self.replaced
    }

    pub async fn kill(&mut self) {
        let _ = crate::inject::sys::pidfd_signal(self.pidfd.as_fd(), 9);
        let _ = tokio::time::timeout(Duration::from_secs(10), self.exit.wait()).await;
    }

    /// Lets the program go on without us.
    pub async fn detach(&mut self) -> bool {
        if self.replaced {
            return self.exit.now().is_none();
        }
        if !self.stop().await {
            return false;
        }
        match self.request(b"D").await {
            Some(reply) => reply == b"OK",
            // It went on and ended before the stub's reply was read.
            None => self.exit.now().is_some(),
        }
    }
}

impl Drop for Target {
    /// The stub of a launched program is our grandchild or our child, depending on how it made its
    /// task; in the second case it is ours to reap.
    fn drop(&mut self) {
        let stub = self.stub_pid;
        if stub > 0 && tokio::runtime::Handle::try_current().is_ok() {
            tokio::spawn(async move {
                for wait in [1, 10, 100, 1000] {
                    tokio::time::sleep(Duration::from_millis(wait)).await;
                    if !matches!(crate::inject::sys::try_reap(stub), Ok(None)) {
                        break;
                    }
                }
            });
        }
    }
}

/// `O` and hex digits: text to print, more replies follow. (`OK` is not.)
pub fn is_output(reply: &[u8]) -> bool {
    reply.first() == Some(&b'O')
        && reply.len() % 2 == 1
        && reply[1..].iter().all(u8::is_ascii_hexdigit)
}
