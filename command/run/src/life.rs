//! A process from the log's view: its rings, symbols and watches.

use super::watches::Watch;
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Instant;
use ulpf_area::SharedArea;
use ulpf_session::armed::Armed;
use ulpf_session::hit::log::{Formatter, Look};
use ulpf_session::merge::Flow;
use ulpf_symbols::Program;

/// A process from its start, its fork or its last exec to its end.
pub struct Life {
    pub pid: i32,
    /// The process that it was forked from.
    pub parent: Option<i32>,
    /// It has called exec.
    pub after_exec: bool,
    /// Its rank in an MPI program.
    pub rank: Option<u32>,
    /// Its program is one that the user has chosen.
    pub wanted: bool,
    pub shared: SharedArea,
    pub program: Program,
    /// All watches, in the order given.
    pub watches: Vec<Watch>,
    pub formatter: Formatter,
    /// By the stub's number: index of the watch, and of its place.
    pub by_id: HashMap<u32, (usize, usize)>,
    pub lost: u64,
    /// Addresses of the functions that the stub has received for the heap check.
    pub served: Vec<u64>,
    /// The user has been told that its rings hold records of no writer of ours.
    pub damaged: bool,
    pub last_refresh: Option<Instant>,
    pub flow: Flow,
    /// Its rings have been read to their end.
    pub is_read: bool,
}

impl Life {
    pub fn new(
        pid: i32,
        shared: SharedArea,
        program: Program,
        watches: Vec<Watch>,
        look: Look,
    ) -> Life {
        let mut life = Life {
            pid,
            parent: None,
            after_exec: false,
            rank: rank(pid),
            wanted: true,
            shared,
            program,
            watches,
            formatter: Formatter::new(look),
            by_id: HashMap::new(),
            lost: 0,
            served: Vec::new(),
            damaged: false,
            last_refresh: None,
            flow: Flow::default(),
            is_read: false,
        };
        for number in 0..life.watches.len() {
            life.know(number);
        }
        life
    }

    /// The program's name.
    pub fn name(&self) -> String {
        let own = self.program.executable();
        own.map_or(String::new(), |m| m.object.name().to_string())
    }

    pub fn know(&mut self, number: usize) {
        if let Armed::Yes(ids) = &self.watches[number].armed {
            for (place, id) in ids.iter().enumerate() {
                self.by_id.entry(*id).or_insert((number, place));
            }
        }
    }

    /// Lets the reader read its rings to the end and finish.
    pub fn finish(&self) {
        self.flow.finish.store(true, Ordering::Release);
        self.shared.wake();
    }

    pub fn refresh(&mut self) {
        if matches!(self.program.refresh_from_process(self.pid), Ok(true)) {
            self.formatter.forget_places();
        }
        self.last_refresh = Some(Instant::now());
    }
}

/// Environment variables with the rank: Open MPI; MPICH and Intel MPI; PMIx; MVAPICH; Slurm.
const RANKS: [&str; 5] = [
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "PMIX_RANK",
    "MV2_COMM_WORLD_RANK",
    "SLURM_PROCID",
];

fn rank(pid: i32) -> Option<u32> {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    rank_in(&environment)
}

fn rank_in(environment: &[u8]) -> Option<u32> {
    let value = |name: &str| {
        let mut all = environment.split(|byte| *byte == 0);
        let value = all.find_map(|one| one.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
        std::str::from_utf8(value).ok()?.parse().ok()
    };
    RANKS.into_iter().find_map(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_numbers() {
        assert_eq!(
            rank_in(b"A=1\0PMI_RANK=7\0OMPI_COMM_WORLD_RANK=3\0"),
            Some(3)
        );
        assert_eq!(rank_in(b"XPMI_RANK=7\0PMI_RANKS=8\0PMI_RANK=\0"), None);
        assert_eq!(rank_in(b"PMIX_RANK=-1\0SLURM_PROCID=0"), Some(0));
        assert_eq!(rank_in(b"PMI_RANK=\xff\0"), None);
    }
}
