//! What others ask of the watches of a process over the control socket, decided: what to tell the stub, or why not.

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
            kind: watch.spec.kind.word().into(),
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
            let arm = watches::resolve(&life.program, &mut watch, &memory, how);
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
            let arm = watches::resolve(&life.program, &mut watch, &memory, how);
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
