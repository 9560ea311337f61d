//! What others ask of the programs that we serve (`crate::door`): `ulpf top` adds watches, switches them off
//! and on, takes them away, while a debugger has its own conversation with the same stubs.
//!
//! ```text
//!   door ─▶ a task for each program: names resolved ─▶ Wish ─▶ Server, when that program rests:
//!             the debugger has stopped it           there and then
//!             it runs (`running`)                   halted (vUlpfHalt), served, resumed as it was
//!             it is being stepped, or a stop has    at the next rest
//!             been asked for already
//! ```
//! A stub speaks with one at a time: a wish is granted only while nothing of the debugger's is under way,
//! so no answer can reach the wrong one, and a stop that is the debugger's business reaches it. Watches in
//! the debugger's own table are its own to change: it takes them away and puts them back as it likes.
#![forbid(unsafe_code)]

use super::Server;
use super::target::Target;
use crate::door::serve::{self, Asked};
use crate::door::{Ask, Entry, Listing, MOST_SITES, refusal};
use crate::run::memory::ProcessMemory;
use crate::run::stops::outcomes;
use crate::run::watches::{Armed, arm};
use crate::symbols::{Program, Spec};
use crate::top::look::{kind_of, word};
use crate::top::model::State;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use tokio::sync::{mpsc, oneshot};
use ulpf_lib::command::{Command, How};
use ulpf_lib::ring::listed;

/// A request that lacks nothing but a rest of its program.
pub(super) struct Wish {
    pid: i32,
    what: What,
    reply: oneshot::Sender<String>,
}

enum What {
    Ask(Ask),
    /// The words of the user, and what the stub is told.
    Arm(String, Command),
}

pub(super) struct Door {
    /// Given to the programs' tasks.
    sender: mpsc::Sender<Wish>,
    wishes: mpsc::Receiver<Wish>,
    /// They wait for their programs to rest.
    pub waiting: Vec<Wish>,
}

/// What has been changed from outside in one stub. Gone with that.
#[derive(Default)]
pub(super) struct Book {
    /// The users' words, by the stub's numbers.
    specs: HashMap<u32, String>,
    /// In force, or not any more, from when the program goes on.
    coming: HashSet<u32>,
    leaving: HashSet<u32>,
}

const SOON: &str = "from when the program goes on";

impl Default for Door {
    fn default() -> Door {
        let (sender, wishes) = mpsc::channel(16);
        Door {
            sender,
            wishes,
            waiting: Vec::new(),
        }
    }
}

impl Door {
    /// From now on others may ask about process `pid`.
    pub fn open(&self, pid: i32) {
        let mut requests = serve::open(pid);
        let sender = self.sender.clone();
        tokio::spawn(async move {
            while let Some(asked) = requests.recv().await {
                if let Some(wish) = prepare(pid, asked).await
                    && sender.send(wish).await.is_err()
                {
                    break;
                }
            }
        });
    }

    /// Safe to cancel.
    pub async fn next(&mut self) -> Wish {
        match self.wishes.recv().await {
            Some(wish) => wish,
            // We have a sender ourselves.
            None => std::future::pending().await,
        }
    }
}

/// Everything that needs no rest of the program: debug information can take its time.
async fn prepare(pid: i32, asked: Asked) -> Option<Wish> {
    let what = match asked.ask {
        Ask::Add(text) => {
            let spec = text.clone();
            let resolved = tokio::task::spawn_blocking(move || resolve(pid, &spec)).await;
            match resolved.unwrap_or_else(|e| Err(e.to_string())) {
                Ok(command) => What::Arm(text, command),
                Err(why) => {
                    let _ = asked.reply.send(refusal(why));
                    return None;
                }
            }
        }
        ask => What::Ask(ask),
    };
    Some(Wish {
        pid,
        what,
        reply: asked.reply,
    })
}

/// How the stub is told to watch this. Its hits are logged and stop nobody: who would hear of a stop has
/// not asked for it.
fn resolve(pid: i32, text: &str) -> Result<Command, String> {
    let spec = Spec::parse(text).map_err(|p| p.to_string())?;
    let io = |e: std::io::Error| format!("the program cannot be read: {e}");
    let program = Program::of_process(pid).map_err(io)?;
    let memory = ProcessMemory::of(pid, None).map_err(io)?;
    let watched = program.resolve(&spec, &memory).map_err(|p| p.to_string())?;
    let how = How {
        log: true,
        ..How::default()
    };
    let arm = arm(&watched, how).map_err(|p| p.to_string())?;
    Ok(Command::Watch(arm))
}

impl Server {
    /// A wish has come while `interrupting` (a stop is on its way to the debugger) or not.
    pub(super) async fn wished(&mut self, wish: Wish, interrupting: bool) {
        self.door.waiting.push(wish);
        self.grant(interrupting).await;
    }

    /// Grants what can be granted, and asks running programs for a rest, where they have none.
    pub(super) async fn grant(&mut self, interrupting: bool) {
        for wish in std::mem::take(&mut self.door.waiting) {
            let Some(target) = self.targets.iter_mut().find(|t| t.pid == wish.pid) else {
                let why = format!("process {} has ended, or is left alone", wish.pid);
                let _ = wish.reply.send(refusal(why));
                continue;
            };
            if let Some(why) = &target.lost {
                let _ = wish.reply.send(refusal(why.trim_start_matches("E.")));
            } else if matches!(wish.what, What::Ask(Ask::List)) {
                let _ = wish.reply.send(target.list());
            } else if target.running {
                if !interrupting {
                    target.halt().await;
                }
                self.door.waiting.push(wish);
            } else {
                let answer = target.change(wish.what).await;
                let _ = wish.reply.send(answer.unwrap_or_else(refusal));
            }
        }
    }
}

impl Target {
    /// The error is a sentence for the user.
    async fn change(&mut self, what: What) -> Result<String, String> {
        let (command, number) = match &what {
            What::Arm(_, command) => (command.clone(), 0),
            What::Ask(Ask::Sites) => {
                let said = self.told(&Command::PatchSites(MOST_SITES)).await?;
                let lines: Vec<&str> = said.lines().filter(|l| l.starts_with('{')).collect();
                return Ok(format!("{{\"sites\":[{}]}}", lines.join(",")));
            }
            What::Ask(Ask::Off(n)) => (self.switched(*n, false)?, *n),
            What::Ask(Ask::On(n)) => (self.switched(*n, true)?, *n),
            What::Ask(Ask::Delete(n)) => (Command::Unwatch(self.ours(*n)?), *n),
            What::Ask(Ask::List | Ask::Add(_)) => return Err("a list changes nothing".into()),
        };
        let said = self.told(&command).await?;
        let line = said.lines().rfind(|l| l.starts_with('{'));
        let line = line.ok_or_else(|| format!("the stub's answer is not understood: {said}"))?;
        let mut told = Vec::new();
        // (`unwatch` says what it has taken away.)
        let _ = outcomes(line, 1, &mut told);
        let id = match told.pop() {
            Some(Armed::Yes(id)) => id,
            Some(Armed::No(problem)) => return Err(problem.to_string()),
            _ => (number as u32).saturating_sub(1),
        };
        match what {
            What::Arm(spec, _) => {
                self.book.specs.insert(id, spec);
                // A number may come back that was given up since the program ran.
                self.book.leaving.remove(&id);
                self.book.coming.insert(id);
            }
            What::Ask(Ask::On(_)) => drop(self.book.coming.insert(id)),
            What::Ask(Ask::Off(_)) => drop(self.book.coming.remove(&id)),
            _ => {
                self.book.coming.remove(&id);
                self.book.leaving.insert(id);
            }
        }
        Ok(format!("{{\"watch\":{}}}", id + 1))
    }

    fn switched(&self, number: usize, on: bool) -> Result<Command, String> {
        let id = self.ours(number)?;
        Ok(Command::Switch { id, on })
    }

    async fn told(&mut self, command: &Command) -> Result<String, String> {
        match self.monitor(&command.to_string()).await {
            Some(said) => Ok(said),
            None if self.exit.now().is_some() => Err("the program has ended".into()),
            None => {
                Err("the program's stub does not answer; nothing is known to have changed".into())
            }
        }
    }

    /// The stub's number of a watch that may be changed from here.
    fn ours(&self, number: usize) -> Result<u32, String> {
        let id = number.wrapping_sub(1) as u32;
        let line = self.shared().roster().get(id as usize);
        let what = line.map_or(0, |line| line.what.load(Acquire));
        let known = self.book.coming.contains(&id) || what & listed::BULK != 0;
        if self.book.leaving.contains(&id) || number == 0 || !known && what == 0 {
            return Err(format!("there is no watch {number}"));
        }
        if !known {
            return Err(format!(
                "watch {number} is the debugger's own: change it there (GDB: info watchpoints, delete, disable)"
            ));
        }
        Ok(id)
    }

    /// The watches that may be changed from here.
    fn list(&mut self) -> String {
        let shared = self.shared().clone();
        // Several stretches may be reported as one watch (the heap).
        let mut all: BTreeMap<u32, Entry> = BTreeMap::new();
        for (id, line) in shared.roster().iter().enumerate() {
            let what = line.what.load(Acquire);
            let as_id = line.reported_as.load(Relaxed);
            let (ended, off) = (what & listed::ENDED != 0, what & listed::OFF != 0);
            if what & listed::BULK == 0 || ended && !off {
                continue;
            }
            let alone = as_id == id as u32;
            all.insert(
                as_id,
                Entry {
                    kind: word(kind_of(what)).into(),
                    addr: if alone { line.start.load(Relaxed) } else { 0 },
                    len: if alone { line.len.load(Relaxed) } else { 0 },
                    state: if off { State::Off } else { State::Armed },
                    id: (!ended).then_some(as_id),
                    past: if ended { vec![as_id] } else { Vec::new() },
                    ..Entry::default()
                },
            );
        }
        let book = &mut self.book;
        let in_force = |id: &u32| all.get(id).is_some_and(|e| e.state == State::Armed);
        book.coming.retain(|id| !in_force(id));
        book.leaving.retain(|id| all.contains_key(id));
        for id in &book.coming {
            let entry = all.entry(*id).or_default();
            (entry.state, entry.why) = (State::Waiting, SOON.into());
            (entry.id, entry.past) = (Some(*id), vec![*id]);
        }
        for id in &book.leaving {
            if let Some(entry) = all.get_mut(id) {
                let why = format!("taken away {SOON}");
                (entry.state, entry.why) = (State::Off, why);
            }
        }
        let entries = all.into_iter().map(|(id, entry)| Entry {
            number: id as usize + 1,
            spec: book.specs.get(&id).cloned().unwrap_or_default(),
            ..entry
        });
        Listing::of(entries.collect()).to_json()
    }
}

/// The same once more, for a program that was halted in the middle of it: signals have been delivered.
/// `None`: it cannot be said again (a step may have been made).
pub(super) fn once_more(packet: &[u8]) -> Option<Vec<u8>> {
    if let [b'c' | b'C', ..] = packet {
        return Some(b"c".into());
    }
    let actions = packet.strip_prefix(b"vCont;")?.split(|&b| b == b';');
    let mut again = b"vCont".to_vec();
    for action in actions {
        let at = action.iter().position(|&b| b == b':');
        let (verb, thread) = action.split_at(at.unwrap_or(action.len()));
        if !matches!(verb, [b'c'] | [b'C', ..]) {
            return None;
        }
        again.extend_from_slice(b";c");
        again.extend_from_slice(thread);
    }
    Some(again)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_said_again() {
        let again = |p: &str| once_more(p.as_bytes()).map(|p| String::from_utf8(p).unwrap());
        assert_eq!(again("c"), Some("c".into()));
        assert_eq!(again("C0b;4010"), Some("c".into()));
        assert_eq!(again("s"), None);
        assert_eq!(again("vCont;c"), Some("vCont;c".into()));
        assert_eq!(
            again("vCont;C0a:p1.2;c:p1.-1"),
            Some("vCont;c:p1.2;c:p1.-1".into())
        );
        assert_eq!(again("vCont;s:p1.2;c"), None);
        assert_eq!(again("vCont;r1,2:p1.2"), None);
        assert_eq!(again("?"), None);
    }
}
