//! The log as a file for `ulpf log` (`ulpf_session::log`). Hits go there without passing through the log's own thread, which
//! writes only the meaning of their numbers.

use super::clock::Clock;
use super::events::Event;
use super::life::Life;
use super::output::Output;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::Duration;
use ulpf_area::SharedArea;
use ulpf_session::armed::Armed;
use ulpf_session::drain::drain;
use ulpf_session::hit::place::Places;
use ulpf_session::log::{Recorder, Word};
use ulpf_session::merge::Flow;
use ulpf_symbols::stored;

/// Writes the start of a file.
pub fn begin(output: &Output, clock: &Clock, several: bool) {
    if let Some(log) = &output.compact {
        let (tsc, rate) = clock.of_log();
        log.words([Word::Log {
            ulpf: env!("CARGO_PKG_VERSION").into(),
            tsc,
            rate,
            several,
        }]);
    }
}

/// Starts a thread that writes a process's hits.
pub fn record(
    log: ulpf_session::log::Log,
    (life, pid): (usize, i32),
    changes_only: bool,
    (source, flow): (SharedArea, Flow),
    sender: Sender<Event>,
) -> JoinHandle<()> {
    let number = life as u32;
    log.words([Word::Life { life: number, pid }]);
    std::thread::spawn(move || {
        let codes = sender.clone();
        let tell = move |code| codes.send(Event::Code(life, code)).is_ok();
        let mut recorder = Recorder::new(log, number, changes_only, tell);
        let drained = drain(&source, &flow, &mut recorder);
        let _ = sender.send(Event::Drained(life, drained));
        let _ = sender.send(Event::NoMoreHits(life));
    })
}

/// Writes the location of code that is new to the log.
pub fn name_code(output: &Output, number: usize, life: &mut Life, code: &[(u64, bool)]) {
    let is_new = |(pc, _): &(u64, bool)| life.program.module_at(*pc).is_none();
    let long_ago = |t: std::time::Instant| t.elapsed() > Duration::from_millis(200);
    if code.iter().any(is_new) && life.last_refresh.is_none_or(long_ago) {
        life.refresh();
    }
    let program = &life.program;
    let word = |(pc, caller): &(u64, bool)| Word::Code {
        life: number as u32,
        caller: *caller,
        at: program.location(*pc, *caller),
    };
    if let Some(log) = &output.compact {
        log.words(code.iter().map(word));
    }
}

/// Writes one of a process's watches, by the numbers that its hits have.
pub fn name_watch(
    output: &Output,
    types: &mut stored::Writer,
    number: usize,
    life: &Life,
    watch: usize,
) {
    let (Some(log), Armed::Yes(ids)) = (&output.compact, &life.watches[watch].armed) else {
        return;
    };
    let places = life.watches[watch].watched.iter().zip(ids);
    let mut new = Vec::new();
    let places: Vec<Word> = places
        .map(|(place, id)| Word::Watch {
            life: number as u32,
            id: *id,
            number: watch + 1,
            place: types.place(place, &mut new),
        })
        .collect();
    log.words(new.into_iter().map(Word::Type));
    log.words(places);
}

/// Writes the names of the programs.
pub fn name_programs(output: &Output, lives: &[Life]) {
    if let Some(log) = &output.compact {
        let names = lives.iter().enumerate();
        log.words(names.map(|(n, life)| Word::Program {
            life: n as u32,
            name: life.name().into(),
        }));
    }
}
