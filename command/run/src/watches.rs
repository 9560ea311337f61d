//! The watches of one run: from the command line, through resolving and arming, to the summary.

use super::active_calls::{NON_LOCAL_EXITS, NonLocalExit};
use super::options::WatchArgs;
use anyhow::{Context, Result};
use ulpf_host::say::{already_printed, say};
use ulpf_lib::command::{Arm, Command, FilterOf, HeapFunction, How, What};
use ulpf_session::arm;
use ulpf_session::armed::Armed;
use ulpf_session::memory::ProcessMemory;
use ulpf_symbols::{Memory, Problem, Program, Scope, Spec, Watched};

/// A watch from the command line to the summary.
#[derive(Clone, Debug)]
pub struct Watch {
    pub spec: Spec,
    /// Its places; one number of the stub for each when it is armed.
    pub watched: Vec<Watched>,
    pub armed: Armed,
    /// The stub's previous numbers of it, from before its library was unloaded.
    pub past: Vec<u32>,
    /// Deleted on request; no longer shown.
    pub deleted: bool,
}

impl Watch {
    /// Bytes of all its places.
    pub fn len(&self) -> u64 {
        let lengths = self.watched.iter().map(|watched| watched.len);
        lengths.fold(0, u64::saturating_add)
    }

    /// Whether it depends on libraries that come or go while the program runs.
    pub fn follows_libraries(&self) -> bool {
        matches!(self.armed, Armed::Pending(_)) || self.spec.filter.names_code()
    }
}

/// Changes that are sent to the stub.
#[derive(Debug, Default)]
pub struct Changes {
    /// Number of the watch (in the order given), and how one of its places is armed. Places of a watch are adjacent.
    pub arm: Vec<(usize, Arm)>,
    pub disarm: Vec<u32>,
    /// Commands that give armed watches another filter.
    pub filter: Vec<Command>,
    /// Code where frames may end without a return, if watches on locals are armed.
    pub exits: Vec<(u64, NonLocalExit)>,
    /// Functions that the heap check needs, perhaps none. `Some` once the program's libraries are loaded.
    pub functions: Option<Vec<HeapFunction>>,
}

impl Changes {
    /// Arms these places of the watch with this number.
    pub fn add(&mut self, number: usize, places: Vec<Arm>) {
        let places = places.into_iter().map(|place| (number, place));
        self.arm.extend(places);
    }

    /// Adds the landings, if a watch is on locals of a function.
    pub fn complete(self, program: &Program) -> Changes {
        let of_a_function = |arm: &Arm| match &arm.what {
            What::Along(path, _) => path.function().is_some(),
            What::Range(_) | What::Heap => false,
        };
        if !self.arm.iter().any(|(_, arm)| of_a_function(arm)) {
            return self;
        }
        let found = |(name, exit)| Some((program.function(name)?, exit));
        let exits = NON_LOCAL_EXITS.into_iter().filter_map(found).collect();
        Changes { exits, ..self }
    }
}

/// The settings for hits of a watch.
pub fn how(options: &WatchArgs) -> How {
    How {
        // Counting needs no records.
        log: !options.quiet,
        backtrace: options.backtrace.unwrap_or(0),
        ..How::default()
    }
}

/// Resolves all watches at the program's present state.
pub fn resolve_all(
    specs: Vec<Spec>,
    program: &Program,
    memory: &dyn Memory,
    how: How,
) -> (Vec<Watch>, Changes) {
    let mut watches = Vec::with_capacity(specs.len());
    let mut changes = Changes::default();
    for spec in specs {
        let mut watch = Watch {
            spec,
            watched: Vec::new(),
            armed: Armed::No(Problem::new("", "", "")),
            past: Vec::new(),
            deleted: false,
        };
        let arms = resolve(program, &mut watch, memory, how);
        changes.add(watches.len(), arms);
        watches.push(watch);
    }
    (watches, changes.complete(program))
}

/// The watches of a process that was forked from one with these, and the changes that arm them; `armed` follows later.
pub fn inherit(watches: &[Watch], program: &Program, how: How) -> (Vec<Watch>, Changes) {
    let mut inherited = watches.to_vec();
    let mut changes = Changes::default();
    for (number, watch) in inherited.iter_mut().enumerate() {
        watch.past.clear();
        if let Armed::Yes(_) = &watch.armed {
            let arms = watch.watched.iter().map(|watched| arm::of(watched, how));
            if let Ok(arms) = arms.collect() {
                changes.add(number, arms);
            }
        }
    }
    (inherited, changes.complete(program))
}

/// Resolves one watch and returns how to arm its places. None if it cannot be watched; `watch.armed` has the reason.
pub fn resolve(program: &Program, watch: &mut Watch, memory: &dyn Memory, how: How) -> Vec<Arm> {
    let found = program
        .resolve_path(&watch.spec, memory)
        .and_then(|watched| {
            let arms = watched.iter().map(|watched| arm::of(watched, how));
            Ok((arms.collect::<Result<_, _>>()?, watched))
        });
    match found {
        Ok((arms, watched)) => {
            watch.watched = watched;
            arms
        }
        Err(problem) => {
            // Only a watch with a named library may wait: a misspelt name would wait for ever.
            let waits = problem.not_yet && matches!(watch.spec.scope, Some(Scope::Object(_)));
            watch.armed = if waits {
                Armed::Pending(problem)
            } else {
                Armed::No(problem)
            };
            Vec::new()
        }
    }
}

/// After libraries were loaded or unloaded: resolves the watches that waited for one, and disarms those whose memory is
/// gone.
pub fn follow_libraries(watches: &mut [Watch], program: &Program, pid: i32, how: How) -> Changes {
    let mut changes = Changes::default();
    let Ok(memory) = ProcessMemory::of(pid, None) else {
        return changes;
    };
    for (number, watch) in watches.iter_mut().enumerate() {
        // Code that its filter names may have come or gone.
        if let (Armed::Yes(ids), true) = (&watch.armed, watch.spec.filter.names_code()) {
            let again = program
                .resolve_path(&watch.spec, &memory)
                .unwrap_or_default();
            for (id, watched) in ids.iter().zip(&mut watch.watched) {
                let same = |w: &&Watched| (w.addr, w.len) == (watched.addr, watched.len);
                // (Elements may have moved since; the filter's code is the same for all.)
                let Some(again) = again.iter().find(same).or(again.first()) else {
                    break;
                };
                if again.filter != watched.filter {
                    changes.filter.push(Command::Filter {
                        of: FilterOf::Watch(*id),
                        filter: again.filter.clone(),
                        keep: true,
                    });
                    watched.filter = again.filter.clone();
                }
            }
        }
        let Some(Scope::Object(library)) = &watch.spec.scope else {
            continue;
        };
        let loaded = program.modules_named(library).next().is_some();
        match (&watch.armed, loaded) {
            (Armed::Yes(ids), false) => {
                changes.disarm.extend(ids);
                watch.past.extend(ids);
                let why = format!("`{library}` was unloaded");
                watch.armed = Armed::Pending(Problem::new(
                    format!("cannot watch `{}`", watch.spec),
                    why,
                    "load it again",
                ));
            }
            (Armed::Pending(_), true) => {
                let arms = resolve(program, watch, &memory, how);
                if let (true, Armed::No(problem)) = (arms.is_empty(), &watch.armed) {
                    say!("{problem}");
                }
                changes.add(number, arms);
            }
            _ => {}
        }
    }
    changes.complete(program)
}

/// All watches of the command line, in the order given.
pub fn specs(options: &WatchArgs) -> Result<Vec<Spec>> {
    let mut texts = options.watch.clone();
    for file in &options.watch_file {
        let text = std::fs::read_to_string(file)
            .with_context(|| format!("cannot read {}", file.display()))?;
        texts.extend(spec_lines(&text).map(str::to_string));
    }
    if texts.is_empty() {
        return Ok(Vec::new());
    }
    let specs: Vec<Spec> = texts
        .iter()
        .map(|text| Spec::parse(text).unwrap_or_else(|problem| Spec::malformed(text, problem)))
        .collect();
    // With --keep-going they are reported when the others are armed, like all refused watches.
    let malformed: Vec<&Problem> = specs.iter().filter_map(Spec::problem).collect();
    let none = malformed.len() == specs.len();
    if none || !malformed.is_empty() && !options.keep_going {
        malformed.iter().for_each(|problem| say!("{problem}"));
        return Err(already_printed());
    }
    Ok(specs)
}

/// SPECs, one a line; `#` starts a comment.
fn spec_lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .map(|line| line.split('#').next().unwrap_or("").trim())
        .filter(|line| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watch_files_have_comments() {
        let lines: Vec<_> = spec_lines("# all\ncounter\n\n  tab[0..4]:rw  # four\n").collect();
        assert_eq!(lines, ["counter", "tab[0..4]:rw"]);
    }
}
