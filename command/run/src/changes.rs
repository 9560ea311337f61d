//! Decides requests over the control socket about a process's watches: changes for the stub, or a refusal.

use super::events::Planned;
use super::life::Life;
use super::watches::{self, Changes, Watch};
use ulpf_lib::command::How;
use ulpf_session::armed::Armed;
use ulpf_session::control_socket::Ask;
use ulpf_session::listing::{Entry, Listing};
use ulpf_session::memory::ProcessMemory;
use ulpf_session::snapshot::State;
use ulpf_symbols::{Problem, Spec};

/// The list of all watches of a life, for a client.
pub fn list(life: &Life) -> String {
    let shown = |(_, w): &(usize, &Watch)| !w.deleted;
    let entry = |(number, watch): (usize, &Watch)| {
        let (state, why, ids) = match &watch.armed {
            Armed::Yes(ids) => (State::Armed, String::new(), ids.clone()),
            Armed::No(problem) => (State::Refused, problem.to_string(), Vec::new()),
            Armed::Pending(problem) => (State::Waiting, problem.why.clone(), Vec::new()),
            Armed::Off => (State::Off, String::new(), Vec::new()),
        };
        Entry {
            number: number + 1,
            spec: watch.spec.text.clone(),
            kind: watch.spec.kind.word().into(),
            addr: watch.watched.first().map_or(0, |w| w.addr),
            len: watch.len(),
            state,
            why,
            ids,
            past: watch.past.clone(),
        }
    };
    let entries = life.watches.iter().enumerate().filter(shown).map(entry);
    Listing::of(entries.collect()).to_json()
}

/// Decides on the changes for the stub, and records them.
pub fn plan(life: &mut Life, ask: &Ask, how: How) -> Planned {
    match ask {
        Ask::List | Ask::Sites | Ask::Blocks => Err("a list changes nothing".into()),
        Ask::Add(text) => {
            let spec = Spec::parse(text).map_err(|problem| problem.to_string())?;
            let memory = memory_of(life)?;
            let mut watch = Watch {
                spec,
                watched: Vec::new(),
                armed: Armed::No(Problem::new("", "", "")),
                past: Vec::new(),
                deleted: false,
            };
            let arms = watches::resolve(&life.program, &mut watch, &memory, how);
            match (arms.is_empty(), &watch.armed) {
                (false, _) => {
                    let (number, mut changes) = (life.watches.len(), Changes::default());
                    life.watches.push(watch);
                    changes.add(number, arms);
                    Ok((number, changes.complete(&life.program)))
                }
                (true, Armed::No(problem) | Armed::Pending(problem)) => Err(problem.to_string()),
                (true, _) => Err("it cannot be watched".into()),
            }
        }
        Ask::Off(n) | Ask::Delete(n) => {
            let number = known(life, *n)?;
            let watch = &mut life.watches[number];
            watch.deleted |= matches!(ask, Ask::Delete(_));
            let mut changes = Changes::default();
            if let Armed::Yes(ids) = &watch.armed {
                watch.past.extend(ids);
                changes.disarm.extend(ids);
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
            let arms = watches::resolve(&life.program, &mut watch, &memory, how);
            if let (true, Armed::No(problem)) = (arms.is_empty(), &watch.armed) {
                return Err(problem.to_string());
            }
            life.watches[number] = watch;
            let mut changes = Changes::default();
            changes.add(number, arms);
            Ok((number, changes.complete(&life.program)))
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
