//! Makes the changes that other clients have requested ([`super::changes`]) while their program is stopped, and lists
//! its watches.
#![forbid(unsafe_code)]

use super::changes::{Change, What};
use super::state::Server;
use super::target::Target;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use ulpf_lib::command::Command;
use ulpf_lib::ring::listed;
use ulpf_session::armed::{Armed, outcomes};
use ulpf_session::control_socket::{Ask, refusal};
use ulpf_session::listing::{Entry, Listing, MOST_SITES, sites};
use ulpf_session::snapshot::State;
use ulpf_session::words::kind_of;

const SOON: &str = "from when the program goes on";

impl Server {
    /// Queues a requested change and makes it, if possible. `interrupting`: a stop is already on its way to the
    /// debugger.
    pub async fn asked(&mut self, change: Change, interrupting: bool) {
        self.changes.waiting.push(change);
        self.make_changes(interrupting).await;
    }

    /// Makes the changes that can be made now. Halts a running program that has changes waiting.
    pub async fn make_changes(&mut self, interrupting: bool) {
        for change in std::mem::take(&mut self.changes.waiting) {
            let Some(target) = self.targets.iter_mut().find(|t| t.pid == change.pid) else {
                let why = format!("process {} has ended, or is left alone", change.pid);
                let _ = change.reply.send(refusal(why));
                continue;
            };
            if let Some(why) = &target.lost {
                let _ = change.reply.send(refusal(why.trim_start_matches("E.")));
            } else if matches!(change.what, What::Ask(Ask::List)) {
                let _ = change.reply.send(target.list());
            } else if target.running {
                if !interrupting {
                    target.halt().await;
                }
                self.changes.waiting.push(change);
            } else {
                let answer = target.change(change.what).await;
                let _ = change.reply.send(answer.unwrap_or_else(refusal));
            }
        }
    }
}

impl Target {
    /// # Errors
    ///
    /// A sentence for the user.
    async fn change(&mut self, what: What) -> Result<String, String> {
        let (command, number) = match &what {
            What::Arm(spec, commands) => return self.arm(spec, commands).await,
            What::Ask(Ask::Sites) => {
                let said = self.ask_stub(&Command::PatchSites(MOST_SITES)).await?;
                return Ok(sites(&said));
            }
            What::Ask(Ask::Blocks) => return self.blocks().await,
            What::Ask(Ask::Off(n)) => (self.switched(*n, false)?, *n),
            What::Ask(Ask::On(n)) => (self.switched(*n, true)?, *n),
            What::Ask(Ask::Delete(n)) => (Command::Unwatch(self.ours(*n)?), *n),
            What::Ask(Ask::List | Ask::Add(_)) => return Err("a list changes nothing".into()),
        };
        // (The answer to `unwatch` contains the removed watch.)
        let id = self.outcome(&command).await?;
        let id = id.unwrap_or((number as u32).saturating_sub(1));
        match what {
            What::Ask(Ask::On(_)) => drop(self.changed.coming.insert(id)),
            What::Ask(Ask::Off(_)) => drop(self.changed.coming.remove(&id)),
            _ => {
                self.changed.coming.remove(&id);
                self.changed.leaving.insert(id);
            }
        }
        Ok(json!({"watch": id + 1}).to_string())
    }

    /// Arms all places or none: half a watch would miss accesses silently.
    async fn arm(&mut self, spec: &str, commands: &[Command]) -> Result<String, String> {
        let mut ids = Vec::with_capacity(commands.len());
        for command in commands {
            let refused = match self.outcome(command).await {
                Ok(Some(id)) => {
                    ids.push(id);
                    continue;
                }
                Ok(None) => "the stub's answer is not understood".into(),
                Err(why) => why,
            };
            for id in ids {
                self.ask_stub(&Command::Unwatch(id)).await?;
            }
            return Err(refused);
        }
        for id in &ids {
            self.changed.specs.insert(*id, spec.to_string());
            // The stub may reuse a number that was freed since the program last ran.
            self.changed.leaving.remove(id);
            self.changed.coming.insert(*id);
        }
        let first = ids.first().ok_or("nothing was named")?;
        Ok(json!({"watch": first + 1}).to_string())
    }

    /// Sends the command to the stub. Returns the number of the watch, if the answer contains one.
    async fn outcome(&mut self, command: &Command) -> Result<Option<u32>, String> {
        let said = self.ask_stub(command).await?;
        let line = said.lines().rfind(|l| l.starts_with('{'));
        let line = line.ok_or_else(|| format!("the stub's answer is not understood: {said}"))?;
        let mut results = Vec::new();
        let _ = outcomes(line, 1, &mut results);
        match results.pop() {
            Some(Armed::Yes(ids)) => Ok(ids.first().copied()),
            Some(Armed::No(problem)) => Err(problem.to_string()),
            _ => Ok(None),
        }
    }

    fn switched(&self, number: usize, on: bool) -> Result<Command, String> {
        let id = self.ours(number)?;
        Ok(Command::Switch { id, on })
    }

    async fn ask_stub(&mut self, command: &Command) -> Result<String, String> {
        match self.monitor(&command.to_string()).await {
            Some(said) => Ok(said),
            None if self.exit.now().is_some() => Err("the program has ended".into()),
            None => {
                Err("the program's stub does not answer; nothing is known to have changed".into())
            }
        }
    }

    /// The stub's number of a watch, if other clients may change it.
    fn ours(&self, number: usize) -> Result<u32, String> {
        let id = number.wrapping_sub(1) as u32;
        let line = self.shared().watch_table().get(id as usize);
        let what = line.map_or(0, |line| line.what.load(Acquire));
        let known = self.changed.coming.contains(&id) || what & listed::OUT_OF_BAND != 0;
        if self.changed.leaving.contains(&id) || number == 0 || !known && what == 0 {
            return Err(format!("there is no watch {number}"));
        }
        if !known {
            return Err(format!(
                "watch {number} is the debugger's own: change it there (GDB: info watchpoints, delete, disable)"
            ));
        }
        Ok(id)
    }

    /// Lists the watches that other clients may change.
    fn list(&mut self) -> String {
        let shared = self.shared().clone();
        // Several ranges may be reported as one watch (the heap).
        let mut all: BTreeMap<u32, Entry> = BTreeMap::new();
        for (id, line) in shared.watch_table().iter().enumerate() {
            let what = line.what.load(Acquire);
            let as_id = line.reported_as.load(Relaxed);
            let (ended, off) = (what & listed::ENDED != 0, what & listed::OFF != 0);
            if what & listed::OUT_OF_BAND == 0 || ended && !off {
                continue;
            }
            let alone = as_id == id as u32;
            all.insert(
                as_id,
                Entry {
                    kind: kind_of(what).word().into(),
                    addr: if alone { line.start.load(Relaxed) } else { 0 },
                    len: if alone { line.len.load(Relaxed) } else { 0 },
                    state: if off { State::Off } else { State::Armed },
                    ids: if ended { Vec::new() } else { vec![as_id] },
                    past: if ended { vec![as_id] } else { Vec::new() },
                    ..Entry::default()
                },
            );
        }
        let changed = &mut self.changed;
        let in_force = |id: &u32| all.get(id).is_some_and(|e| e.state == State::Armed);
        changed.coming.retain(|id| !in_force(id));
        changed.leaving.retain(|id| all.contains_key(id));
        for id in &changed.coming {
            let entry = all.entry(*id).or_default();
            (entry.state, entry.why) = (State::Waiting, SOON.into());
            (entry.ids, entry.past) = (vec![*id], vec![*id]);
        }
        for id in &changed.leaving {
            if let Some(entry) = all.get_mut(id) {
                let why = format!("taken away {SOON}");
                (entry.state, entry.why) = (State::Off, why);
            }
        }
        let entries = all.into_iter().map(|(id, entry)| Entry {
            number: id as usize + 1,
            spec: changed.specs.get(&id).cloned().unwrap_or_default(),
            ..entry
        });
        Listing::of(entries.collect()).to_json()
    }
}
