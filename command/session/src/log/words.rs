//! Words: lines of JSON in blocks of their own. They explain the numbers in hits (process, watch, instruction) and keep
//! the other messages of the run.

use crate::hit::place::Places;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::HashMap;
use ulpf_symbols::stored::{Kept, Place, Reader};
use ulpf_symbols::{Location, Watched};

/// One line.
#[derive(Serialize, Deserialize)]
#[serde(tag = "word", rename_all = "lowercase")]
pub enum Word<'a> {
    /// The clock: nanoseconds = (tsc − `tsc`) × `rate` >> 32. The first line.
    Log {
        ulpf: Cow<'a, str>,
        tsc: u64,
        rate: u64,
        /// Lines name the process, because there may be several.
        several: bool,
    },
    /// A process from its start, its fork or its last exec to its end.
    Life { life: u32, pid: i32 },
    /// The program's name, as soon as it is known.
    Program { life: u32, name: Cow<'a, str> },
    /// A type.
    Type(Kept<'a>),
    /// A place of a watch. Hits of that life call it `id`; the user calls the watch `number`, from 1.
    Watch {
        life: u32,
        id: u32,
        number: usize,
        place: Place<'a>,
    },
    /// An instruction, or (`caller`) the call before a return address.
    Code {
        life: u32,
        caller: bool,
        at: Location,
    },
    /// A line of JSON that is not a hit; docs/json.md describes these.
    Said { tsc: u64, line: Cow<'a, str> },
    /// The log is complete up to this line.
    End,
}

/// The clock of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clock {
    pub tsc: u64,
    pub rate: u64,
}

impl Clock {
    /// Nanoseconds since the beginning.
    pub fn nanos(&self, tsc: u64) -> u64 {
        let counts = tsc.wrapping_sub(self.tsc) as i64;
        ((counts.max(0) as u128 * u128::from(self.rate)) >> 32) as u64
    }

    /// The first TSC value at least `nanos` nanoseconds after the beginning.
    pub fn tsc(&self, nanos: u64) -> u64 {
        let counts = (u128::from(nanos) << 32).div_ceil(u128::from(self.rate.max(1)));
        u64::try_from(counts).map_or(u64::MAX, |n| self.tsc.saturating_add(n))
    }
}

/// A process, as hits refer to it.
#[derive(Default)]
pub struct Life {
    pub pid: i32,
    pub program: String,
    /// Watches by the number that hits carry: the user's number of the watch, from 1, and the watched place.
    pub watches: HashMap<u32, (usize, Watched)>,
    code: HashMap<(u64, bool), Location>,
}

impl Places for Life {
    fn location(&self, pc: u64, caller: bool) -> Location {
        let known = self.code.get(&(pc, caller)).cloned();
        known.unwrap_or(Location {
            pc,
            ..Location::default()
        })
    }
}

/// All words of a file.
#[derive(Default)]
pub struct Words {
    pub clock: Clock,
    pub several: bool,
    pub lives: Vec<Life>,
    /// Messages in their order.
    pub said: Vec<(u64, String)>,
    pub ended: bool,
    /// Lines that do not parse as words.
    pub bad: u64,
    types: Reader,
}

/// Limit of the lives of a log, so that a hostile file cannot make us allocate without bound.
const MOST_LIVES: usize = 1 << 20;

impl Words {
    /// Reads the lines of a block.
    pub fn read(&mut self, payload: &[u8]) {
        for line in payload.split(|b| *b == b'\n').filter(|l| !l.is_empty()) {
            let understood = serde_json::from_slice(line).ok().and_then(|w| self.word(w));
            self.bad += u64::from(understood.is_none());
        }
    }

    fn word(&mut self, word: Word) -> Option<()> {
        match word {
            Word::Log {
                tsc, rate, several, ..
            } => {
                self.clock = Clock { tsc, rate };
                self.several = several;
            }
            Word::Life { life, pid } => self.life(life)?.pid = pid,
            Word::Program { life, name } => self.life(life)?.program = name.into_owned(),
            Word::Type(kept) => self.types.ty(kept)?,
            Word::Watch {
                life,
                id,
                number,
                place,
            } => {
                let watched = self.types.place(place)?;
                let number = number.clamp(1, u32::MAX as usize);
                self.life(life)?.watches.insert(id, (number, watched));
            }
            Word::Code { life, caller, at } => {
                self.life(life)?.code.insert((at.pc, caller), at);
            }
            Word::Said { tsc, line } => self.said.push((tsc, line.into_owned())),
            Word::End => self.ended = true,
        }
        Some(())
    }

    /// Finds or adds a life; lives appear in the order of their numbers.
    fn life(&mut self, life: u32) -> Option<&mut Life> {
        let life = life as usize;
        if life == self.lives.len() && life < MOST_LIVES {
            self.lives.push(Life::default());
        }
        self.lives.get_mut(life)
    }
}
