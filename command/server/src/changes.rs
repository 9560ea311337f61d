//! What others ask of the programs that we serve, over the control socket ([`ulpf_session::control_socket`]):
//! `ulpf top` adds watches, switches them off and on, takes them away, while a debugger has its own conversation with
//! the same stubs. Here a change is prepared; `apply` makes it.
//!
//! ```text
//!   control socket ─▶ a task for each program: names resolved ─▶ Change ─▶ Server, when that program rests:
//!             the debugger has stopped it           there and then
//!             it runs (`running`)                   halted (vUlpfHalt), served, resumed as it was
//!             it is being stepped, or a stop has    at the next rest
//!             been asked for already
//! ```
//! A stub speaks with one at a time: a change is made only while nothing of the debugger's is under way,
//! so no answer can reach the wrong one, and a stop that is the debugger's business reaches it. Watches in
//! the debugger's own table are its own to change: it takes them away and puts them back as it likes.
#![forbid(unsafe_code)]

use std::collections::{HashMap, HashSet};
use tokio::sync::{mpsc, oneshot};
use ulpf_lib::command::{Command, How};
use ulpf_session::arm;
use ulpf_session::control_socket::serve::{self, Asked};
use ulpf_session::control_socket::{Ask, refusal};
use ulpf_session::memory::ProcessMemory;
use ulpf_symbols::{Program, Spec, Watched};

/// A change that lacks nothing but a rest of its program.
pub struct Change {
    pub pid: i32,
    pub what: What,
    pub reply: oneshot::Sender<String>,
}

pub enum What {
    Ask(Ask),
    /// The words of the user, and what the stub is told: a command for each place.
    Arm(String, Vec<Command>),
}

pub struct Changes {
    /// Given to the programs' tasks.
    sender: mpsc::Sender<Change>,
    asked: mpsc::Receiver<Change>,
    /// They wait for their programs to rest.
    pub waiting: Vec<Change>,
}

/// What has been changed from outside in one stub. Gone with that.
#[derive(Default)]
pub struct Changed {
    /// The users' words, by the stub's numbers.
    pub specs: HashMap<u32, String>,
    /// In force, or not any more, from when the program goes on.
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
    /// From now on others may ask about process `pid`.
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

    /// Safe to cancel.
    pub async fn next(&mut self) -> Change {
        match self.asked.recv().await {
            Some(change) => change,
            // We have a sender ourselves.
            None => std::future::pending().await,
        }
    }
}

/// Everything that needs no rest of the program: debug information can take its time.
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

/// How the stub is told to watch this. Its hits are logged and stop nobody: who would hear of a stop has
/// not asked for it.
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
