//! Changes that other clients request over the control socket ([`ulpf_session::control_socket`]). `ulpf top` adds
//! watches, switches them off and on, and removes them, while a debugger talks to the same stubs. This module prepares
//! a change; `apply` makes it.
//!
//! ```text
//!   control socket ─▶ a task for each program: names resolved ─▶ Change ─▶ Server, when that program rests:
//!             the debugger has stopped it           there and then
//!             it runs (`running`)                   halted (vUlpfHalt), served, resumed as it was
//!             it is being stepped, or a stop has    at the next rest
//!             been asked for already
//! ```
//! A stub serves one client at a time, so a change waits until no request of the debugger is in progress. Thus no
//! answer reaches the wrong client, and the debugger receives every stop that concerns it. Other clients may not change
//! watches of the debugger's own table, because it removes and re-inserts them as it likes.
#![forbid(unsafe_code)]

use std::collections::{HashMap, HashSet};
use tokio::sync::{mpsc, oneshot};
use ulpf_lib::command::{Command, How};
use ulpf_session::arm;
use ulpf_session::control_socket::serve::{self, Asked};
use ulpf_session::control_socket::{Ask, refusal};
use ulpf_session::memory::ProcessMemory;
use ulpf_symbols::{Program, Spec, Watched};

/// A prepared change: it waits only until its program is stopped.
pub struct Change {
    pub pid: i32,
    pub what: What,
    pub reply: oneshot::Sender<String>,
}

pub enum What {
    Ask(Ask),
    /// The user's text, and the stub's commands for it: one for each place.
    Arm(String, Vec<Command>),
}

pub struct Changes {
    /// Cloned into the task of each program.
    sender: mpsc::Sender<Change>,
    asked: mpsc::Receiver<Change>,
    /// Changes whose programs are not stopped yet.
    pub waiting: Vec<Change>,
}

/// Changes from outside in one stub. Dropped with the stub.
#[derive(Default)]
pub struct Changed {
    /// The users' texts, by the stub's number of the watch.
    pub specs: HashMap<u32, String>,
    /// Watches that become active (`coming`) or inactive (`leaving`) when the program resumes.
    pub coming: HashSet<u32>,
    pub leaving: HashSet<u32>,
}

impl Default for Changes {
    fn default() -> Changes {
        let (sender, asked) = mpsc::channel(16);
        Changes {
            sender,
            asked,
            waiting: Vec::new(),
        }
    }
}

impl Changes {
    /// From now on other clients may send requests for process `pid`.
    pub fn accept(&self, pid: i32) {
        let mut requests = serve::open(pid);
        let sender = self.sender.clone();
        tokio::spawn(async move {
            while let Some(asked) = requests.recv().await {
                if let Some(change) = prepare(pid, asked).await
                    && sender.send(change).await.is_err()
                {
                    break;
                }
            }
        });
    }

    /// Cancel-safe.
    pub async fn next(&mut self) -> Change {
        match self.asked.recv().await {
            Some(change) => change,
            // Never happens: `self.sender` keeps the channel open.
            None => std::future::pending().await,
        }
    }
}

/// Does all work that does not need a stopped program. Reading debug information can take long.
async fn prepare(pid: i32, asked: Asked) -> Option<Change> {
    let what = match asked.ask {
        Ask::Add(text) => {
            let spec = text.clone();
            let resolved = tokio::task::spawn_blocking(move || resolve(pid, &spec)).await;
            match resolved.unwrap_or_else(|e| Err(e.to_string())) {
                Ok(commands) => What::Arm(text, commands),
                Err(why) => {
                    let _ = asked.reply.send(refusal(why));
                    return None;
                }
            }
        }
        ask => What::Ask(ask),
    };
    Some(Change {
        pid,
        what,
        reply: asked.reply,
    })
}

/// The stub's commands for this watch. Hits are logged and never stop the program, since the debugger did not ask for a
/// stop.
fn resolve(pid: i32, text: &str) -> Result<Vec<Command>, String> {
    let spec = Spec::parse(text).map_err(|p| p.to_string())?;
    let io = |e: std::io::Error| format!("the program cannot be read: {e}");
    let program = Program::of_process(pid).map_err(io)?;
    let memory = ProcessMemory::of(pid, None).map_err(io)?;
    let watched = program
        .resolve_path(&spec, &memory)
        .map_err(|p| p.to_string())?;
    let in_frames = |w: &Watched| w.path.as_ref().is_some_and(|p| p.function().is_some());
    if watched.iter().any(in_frames) {
        return Err(format!(
            "cannot watch `{text}`: it is a local variable, and calls of its function are the debugger's business here; break in the function, and say `watch` or `ulpf watch` there"
        ));
    }
    let how = How {
        log: true,
        ..How::default()
    };
    let arms = watched.iter().map(|place| arm::of(place, how));
    let commands = arms.map(|arm| arm.map(Command::Watch).map_err(|p| p.to_string()));
    commands.collect()
}
