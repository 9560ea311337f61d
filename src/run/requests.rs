//! What others ask of us while the program runs (`door`): `ulpf top` adds watches, switches them off and
//! on, takes them away.
//!
//! ```text
//!   door ──Asked──▶ Control: interrupt, at rest ──Event::Change──▶ Log: resolve ──Changes──▶ Control: arm
//! ```
//! The program rests for as long as that takes. A list needs no rest: the log knows.

use super::control::Control;
use super::log::{Event, Life};
use super::summary::kind;
use super::watches::{self, Armed, Changes, Watch};
use crate::door::serve::{Asked, Requests};
use crate::door::{Ask, Entry, Listing, MOST_SITES, refusal};
use crate::run::memory::ProcessMemory;
use crate::symbols::{Problem, Spec};
use crate::top::model::State;
use anyhow::{Result, anyhow};
use std::sync::mpsc::Sender;
use tokio::sync::oneshot;
use ulpf_lib::command::{Command, How};

/// What is to be done for a request, or why not.
pub type Planned = Result<(usize, Changes), String>;

/// The next request; none comes where there is no door.
pub async fn next(requests: &mut Option<Requests>) -> Asked {
    if let Some(open) = requests
        && let Some(asked) = open.recv().await
    {
        return asked;
    }
    std::future::pending().await
}

impl Control {
    /// Somebody asks something.
    pub(super) async fn asked(&mut self, asked: Asked, events: &Sender<Event>) -> Result<()> {
        if asked.ask == Ask::List {
            let _ = events.send(Event::List(self.life, asked.reply));
            return Ok(());
        }
        self.waiting.push(asked);
        self.client.interrupt()?;
        Ok(())
    }

    /// The program rests: now what was asked for can be done.
    pub(super) async fn serve(&mut self, events: &Sender<Event>) -> Result<()> {
        for asked in std::mem::take(&mut self.waiting) {
            if asked.ask == Ask::Sites {
                let lines = self.command(&Command::PatchSites(MOST_SITES)).await?;
                let lines: Vec<&str> = lines.lines().filter(|l| l.starts_with('{')).collect();
                let _ = asked
                    .reply
                    .send(format!("{{\"sites\":[{}]}}", lines.join(",")));
                continue;
            }
            let (reply, answer) = oneshot::channel();
            let change = Event::Change(self.life, asked.ask, reply);
            events
                .send(change)
                .map_err(|_| anyhow!("the log has ended"))?;
            let (number, changes) = match answer.await? {
                Ok(planned) => planned,
                Err(why) => {
                    let _ = asked.reply.send(refusal(why));
                    continue;
                }
            };
            let mut answer = format!("{{\"watch\":{}}}", number + 1);
            for (number, armed) in self.change(&changes).await? {
                if let Armed::No(problem) = &armed {
                    answer = refusal(problem);
                }
                let _ = events.send(Event::Armed(self.life, number, armed));
            }
            let _ = asked.reply.send(answer);
        }
        Ok(())
    }
}

/// All watches of a life, for whoever shows them.
pub fn list(life: &Life) -> String {
    let shown = |(_, w): &(usize, &Watch)| !w.deleted;
    let entry = |(number, watch): (usize, &Watch)| {
        let (state, why, id) = match &watch.armed {
            Armed::Yes(id) => (State::Armed, String::new(), Some(*id)),
            Armed::No(problem) => (State::Refused, problem.to_string(), None),
            Armed::Pending(problem) => (State::Waiting, problem.why.clone(), None),
            Armed::Off => (State::Off, String::new(), None),
        };
        let at = watch.watched.as_ref();
        Entry {
            number: number + 1,
            spec: watch.spec.text.clone(),
            kind: kind(watch.spec.kind).into(),
            addr: at.map_or(0, |w| w.addr),
            len: at.map_or(0, |w| w.len),
            state,
            why,
            id,
            past: watch.past.clone(),
        }
    };
    let entries = life.watches.iter().enumerate().filter(shown).map(entry);
    Listing::of(entries.collect()).to_json()
}

/// Decides what to tell the stub, and keeps it in mind.
pub fn plan(life: &mut Life, ask: &Ask, how: How) -> Planned {
    match ask {
        Ask::List | Ask::Sites => Err("a list changes nothing".into()),
        Ask::Add(text) => {
            let spec = Spec::parse(text).map_err(|problem| problem.to_string())?;
            let memory = memory_of(life)?;
            let mut watch = Watch {
                spec,
                watched: None,
                armed: Armed::No(Problem::new("", "", "")),
                past: Vec::new(),
                deleted: false,
            };
            let arm = watches::resolve(life.program(), &mut watch, &memory, how);
            match (arm, &watch.armed) {
                (Some(arm), _) => {
                    let number = life.watches.len();
                    life.watches.push(watch);
                    let arm = vec![(number, arm)];
                    Ok((
                        number,
                        Changes {
                            arm,
                            ..Changes::default()
                        },
                    ))
                }
                (None, Armed::No(problem) | Armed::Pending(problem)) => Err(problem.to_string()),
                (None, _) => Err("it cannot be watched".into()),
            }
        }
        Ask::Off(n) | Ask::Delete(n) => {
            let number = known(life, *n)?;
            let watch = &mut life.watches[number];
            watch.deleted |= matches!(ask, Ask::Delete(_));
            let mut changes = Changes::default();
            if let Armed::Yes(id) = watch.armed {
                watch.past.push(id);
                changes.disarm.push(id);
            }
            watch.armed = Armed::Off;
            Ok((number, changes))
        }
        Ask::On(n) => {
            let number = known(life, *n)?;
            if let Armed::Yes(_) = life.watches[number].armed {
                return Err(format!("watch {n} is on already"));
            }
            let memory = memory_of(life)?;
            let mut watch = life.watches[number].clone();
            let arm = watches::resolve(life.program(), &mut watch, &memory, how);
            let arm = match (arm, &watch.armed) {
                (Some(arm), _) => vec![(number, arm)],
                (None, Armed::No(problem)) => return Err(problem.to_string()),
                (None, _) => Vec::new(),
            };
            life.watches[number] = watch;
            Ok((
                number,
                Changes {
                    arm,
                    ..Changes::default()
                },
            ))
        }
    }
}

fn known(life: &Life, n: usize) -> Result<usize, String> {
    let number = n.wrapping_sub(1);
    match life.watches.get(number).filter(|w| !w.deleted) {
        Some(_) => Ok(number),
        None => Err(format!("there is no watch {n}")),
    }
}

fn memory_of(life: &Life) -> Result<ProcessMemory, String> {
    ProcessMemory::of(life.pid, None).map_err(|e| format!("cannot read the program's memory: {e}"))
}
