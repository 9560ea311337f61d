//! The stub task's part in exec. The command follows the program into its new image; the old image ends, and the stub
//! with it.
//!
//! ```text
//!   thread                stub's task                    command
//!   ExecBegin ──────────▶ parks all others
//!                         %UlpfExec:TID;DIR;PATH ──────▶ seizes the thread, or leaves it alone
//!                         ◀───────────── vUlpfExec;go or ;alone
//!   execve(2) ◀────────── exec_word
//!     … worked:           ◀───────────── vUlpfExec;over  the thread stands at its new entry
//!                         ends
//!     … failed: End ────▶ %UlpfExecFailed ─────────────▶ lets go of the thread
//!   goes on ◀──────────── ◀───────────── vUlpfExec;over
//! ```
//! The command offers this with `QUlpfFollow:exec`; otherwise nothing is asked.
//!
//! With `QUlpfFollow:…;fork` a forked child, from which everything of ours was removed, waits on a word of a page that
//! it shares with us (`stub/handlers/src/syscalls/fork_page.rs`). It waits until the command has seized it or does not
//! want it. Its parent stops and reports it. With `vUlpfForkHold;1` the parent does not return from fork when it goes
//! on, but runs in our code until `vUlpfForkHold;0` (`stub/handlers/src/syscalls/forked.rs`). A vfork child reports
//! itself before it runs; it has no memory of its own, so nothing is loaded into it. With `vUlpfVfork;CHILD` it counts
//! as one of our threads until it executes a program. Then it has the above exchange itself (`%UlpfExec:…;CHILD`), the
//! last message comes when it has gone, and the stub stays. With `QUlpfFollow:…;spawn` every vfork child does so.
//!
//! With `QUlpfFollow:…;traces;traced` a thread stops before the program seizes a process with ptrace(2), or is seized
//! (`stub/handlers/src/syscalls/tracing.rs`).

use core::sync::atomic::Ordering::*;

use super::socket::send_all;
use super::{Control, reader};
use ulpf_lib::sync::futex;
use ulpf_stub_handlers::global::{follows, g};
use ulpf_stub_handlers::runtime::events::Request;
use ulpf_stub_handlers::runtime::thread::{State, Thread};
use ulpf_stub_handlers::syscalls::{fork_page, seccomp};

/// Values of `Global::exec_word`.
const FOLLOWED: u32 = 1;
const ALONE: u32 = 2;

/// State of the exchange; nothing while no thread is about to exec.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub enum Exec {
    #[default]
    None,
    Asked,
    /// The command traces the thread.
    Followed,
    /// The command has left the thread alone, or has let go of it again.
    Alone,
    /// It has failed, and the command knows.
    Failed,
    /// The process runs another image.
    Over,
}

/// `exec;fork;vfork;spawn;traces;traced`, or less.
pub fn set(what: &[u8]) {
    let bits = what.split(|b| *b == b';').fold(0, |bits, w| {
        bits | match w {
            b"exec" => follows::EXEC,
            b"fork" => follows::FORK,
            b"vfork" => follows::VFORK,
            b"spawn" => follows::SPAWN,
            b"traces" => follows::TRACES,
            b"traced" => follows::TRACED,
            _ => 0,
        }
    });
    g().follows.store(bits, SeqCst);
}

/// `vUlpfForkHold`: a thread that has forked and now goes on runs, but does not return from fork.
pub fn hold_fork(yes: bool) {
    g().fork_held.store(yes, SeqCst);
}

/// Marks a stopped vfork child as adopted, or not.
pub fn adopt_child(child: i32, yes: bool) -> bool {
    let found = g().threads.find(child).filter(|t| !t.is_programs());
    if let Some(t) = found {
        t.adopted.store(yes, SeqCst);
    }
    found.is_some()
}

/// Ends following: no child waits for the command any more.
pub fn release_all() {
    g().follows.store(0, SeqCst);
    hold_fork(false);
    for t in g().threads.iter().filter(|t| !t.is_programs()) {
        t.adopted.store(false, SeqCst);
    }
    fork_page::release_all();
}

impl Control {
    pub(super) fn exec_begins(&mut self, t: &Thread, path: (u64, u64), dir: i32) {
        self.exec = Exec::Asked;
        // Here, for several may have asked at once: the word must not be an earlier one's.
        g().exec_word.store(0, SeqCst);
        seccomp::tell(t);
        // (The command waits for the end of the detach, and reads nothing else.)
        if self.leaving {
            self.exec_is_on_its_own();
            return;
        }
        // SAFETY: the thread waits, and with it the string that it has measured.
        let path = unsafe { core::slice::from_raw_parts(path.0 as *const u8, path.1 as usize) };
        let mut text = b"UlpfExec:".to_vec();
        ulpf_rsp::push_number(&mut text, t.tid() as u64);
        text.push(b';');
        ulpf_rsp::push_number(&mut text, u64::from(dir as u32));
        text.push(b';');
        ulpf_rsp::push_hex(&mut text, path);
        if !t.is_programs() {
            text.push(b';');
            ulpf_rsp::push_number(&mut text, t.tgid() as u64);
        }
        self.notify_command(&text);
    }

    /// The thread is back: exec has failed. Returns true once no tracer holds it any more.
    pub(super) fn exec_settled(&mut self) -> bool {
        match self.exec {
            Exec::Followed => {
                self.exec = Exec::Failed;
                self.notify_command(b"UlpfExecFailed");
                false
            }
            Exec::Failed | Exec::Asked => reader::CLOSED.load(SeqCst),
            Exec::Alone => {
                self.notify_command(b"UlpfExecFailed");
                true
            }
            _ => true,
        }
    }

    /// `vUlpfExec;…`
    pub fn exec_word(&mut self, word: &[u8]) {
        self.exec = match (word, self.exec) {
            (b"go", Exec::Asked) => Exec::Followed,
            (b"alone", Exec::Asked) => Exec::Alone,
            (b"over", Exec::Failed) => Exec::Alone,
            (b"over", Exec::Followed | Exec::Alone) => Exec::Over,
            (_, other) => other,
        };
        self.tell_thread();
    }

    /// The command is gone, so that it cannot be asked.
    pub(super) fn exec_is_on_its_own(&mut self) {
        if self.exec == Exec::Asked {
            self.exec = Exec::Alone;
            self.tell_thread();
        }
    }

    fn tell_thread(&self) {
        let word = match self.exec {
            Exec::Followed => FOLLOWED,
            Exec::Alone => ALONE,
            _ => return,
        };
        g().exec_word.store(word, SeqCst);
        futex::wake_all(&g().exec_word);
    }

    /// Returns whether a vfork child has executed another program, or may have: only the command knows, which traces
    /// it. The child's parent does not go on before the command has confirmed it.
    pub(super) fn child_is_leaving(&self, t: &Thread) -> bool {
        self.exec == Exec::Followed
            && !t.is_programs()
            && t.state() != State::Requesting
            && !reader::CLOSED.load(SeqCst)
    }

    /// `vUlpfExec;over`: a vfork child has left our memory. `false`: the program itself has.
    pub(super) fn child_has_left(&mut self) -> bool {
        match self.holder {
            Some((t, _)) if !t.is_programs() => {
                self.exec = Exec::None;
                t.set_state(State::Dead);
                true
            }
            _ => false,
        }
    }

    pub(super) fn waits_for_exec(&self) -> bool {
        matches!(self.holder, Some((_, Request::ExecBegin { .. })))
    }

    /// `%TEXT#xx`, between the command and us only.
    fn notify_command(&self, text: &[u8]) {
        send_all(self.fd, &ulpf_rsp::notification(text));
    }
}
