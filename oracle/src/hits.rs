//! The data that is compared: hits in the order of execution, per epoch and thread. Each instruction has its own hits,
//! and so has each iteration of a string instruction. docs/guarantees/hits.md defines a hit.

use crate::program::Watch;
use std::collections::BTreeMap;
use ulpf_lib::AccessKind;
use ulpf_lib::ring::MAX_VALUE;

/// The fields of a hit that both sides know.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hit {
    /// Index in the epoch's watches.
    pub watch: u32,
    pub pc: u64,
    pub addr: u64,
    pub len: u32,
    /// `AccessKind`.
    pub kind: u8,
    pub silent: bool,
    pub syscall: Option<u32>,
    pub old: [u8; MAX_VALUE],
    pub new: [u8; MAX_VALUE],
}

impl std::fmt::Debug for Hit {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let kind = ["?", "read", "write", "read-write"][(self.kind & 3) as usize];
        let n = (self.len as usize).min(MAX_VALUE);
        write!(
            f,
            "pc {:#x} {kind} {:#x}+{} watch {}",
            self.pc, self.addr, self.len, self.watch
        )?;
        if let Some(nr) = self.syscall {
            write!(f, " syscall {nr}")?;
        }
        if self.silent {
            write!(f, " silent")?;
        }
        write!(f, " ")?;
        self.old[..n]
            .iter()
            .try_for_each(|b| write!(f, "{b:02x}"))?;
        write!(f, " -> ")?;
        self.new[..n].iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

/// An access as a judge sees it.
#[derive(Clone, Debug)]
pub struct Access {
    pub addr: u64,
    pub kind: AccessKind,
    /// As long as the access.
    pub old: Vec<u8>,
    pub new: Vec<u8>,
}

/// The hits of one thread in one epoch; `ends[i]` is where those of the i-th group end.
#[derive(Default, Clone)]
pub struct Sequence {
    pub hits: Vec<Hit>,
    pub ends: Vec<usize>,
}

/// Hits that a judge expects.
#[derive(Default, Clone)]
pub struct Expected {
    /// Per epoch, per thread (0 is the first one, others in the order of their creation).
    pub epochs: Vec<BTreeMap<u32, Sequence>>,
    pub instructions: u64,
    /// Accesses to watched pages.
    pub accesses: u64,
}

impl Expected {
    /// Appends the expectation for the next program.
    pub fn append(&mut self, next: Expected) {
        self.instructions += next.instructions;
        self.accesses += next.accesses;
        self.epochs.extend(next.epochs);
    }

    /// Adds the expectation for one thread.
    pub fn join(&mut self, thread: u32, part: Expected) {
        self.instructions += part.instructions;
        self.accesses += part.accesses;
        self.epochs
            .resize(part.epochs.len().max(self.epochs.len()), BTreeMap::new());
        for (to, from) in self.epochs.iter_mut().zip(part.epochs) {
            to.extend(from.into_values().map(|s| (thread, s)));
        }
    }
}

/// Hits that ulpf has reported.
pub type Actual = Vec<BTreeMap<u32, Vec<Hit>>>;

/// Turns accesses into hits.
pub struct Recorder {
    pub out: Expected,
    pub watches: Vec<Watch>,
    pub thread: u32,
    /// Accesses are not watched.
    pub unseen: bool,
}

impl Recorder {
    pub fn new() -> Recorder {
        Recorder {
            out: Expected::default(),
            watches: vec![],
            thread: 0,
            unseen: false,
        }
    }

    pub fn epoch(&mut self, watches: &[Watch]) {
        self.watches = watches.to_vec();
        self.out.epochs.push(BTreeMap::new());
    }

    /// Whether the access reaches a page of which some byte is watched.
    pub fn watched_page(&self, addr: u64, len: u64) -> bool {
        let (from, to) = (addr & !4095, (addr + len + 4095) & !4095);
        self.watches
            .iter()
            .any(|w| w.addr < to && w.addr + w.len > from)
    }

    pub fn any_overlap(&self, addr: u64, len: u64) -> bool {
        self.watches
            .iter()
            .any(|w| w.addr < addr + len && w.addr + w.len > addr)
    }

    /// All accesses of one instruction, or of one iteration.
    pub fn group(&mut self, pc: u64, syscall: Option<u32>, accesses: &[Access]) {
        let Some(epoch) = self.out.epochs.last_mut() else {
            return;
        };
        if self.unseen {
            return;
        }
        let mut hits = Vec::new();
        for a in accesses {
            let len = a.old.len() as u64;
            for (n, w) in self.watches.iter().enumerate() {
                let (from, to) = (a.addr.max(w.addr), (a.addr + len).min(w.addr + w.len));
                if from >= to || !w.kind.sees(a.kind) {
                    continue;
                }
                let part = (from - a.addr) as usize..(to - a.addr) as usize;
                let (o, v) = (&a.old[part.clone()], &a.new[part]);
                let (mut old, mut new) = ([0; MAX_VALUE], [0; MAX_VALUE]);
                let shown = o.len().min(MAX_VALUE);
                old[..shown].copy_from_slice(&o[..shown]);
                new[..shown].copy_from_slice(&v[..shown]);
                hits.push(Hit {
                    watch: n as u32,
                    pc,
                    addr: from,
                    len: (to - from) as u32,
                    kind: a.kind as u8,
                    silent: a.kind.writes() && o == v,
                    syscall,
                    old,
                    new,
                });
            }
        }
        if !hits.is_empty() {
            let s = epoch.entry(self.thread).or_default();
            s.hits.extend(hits);
            s.ends.push(s.hits.len());
        }
    }
}

/// The first thing that is not as expected.
#[derive(Debug)]
pub struct Difference {
    pub epoch: usize,
    pub thread: u32,
    pub expected: Vec<Hit>,
    pub got: Vec<Hit>,
    pub what: String,
}

/// Compares; the number of hits that are equal, or the first difference.
pub fn compare(expected: &Expected, actual: &Actual) -> Result<u64, Box<Difference>> {
    let none = BTreeMap::new();
    let mut equal = 0;
    for n in 0..expected.epochs.len().max(actual.len()) {
        let empty = BTreeMap::new();
        let e = expected.epochs.get(n).unwrap_or(&empty);
        let a = actual.get(n).unwrap_or(&none);
        let threads: std::collections::BTreeSet<_> = e.keys().chain(a.keys()).copied().collect();
        for thread in threads {
            let nothing = Sequence::default();
            let s = e.get(&thread).unwrap_or(&nothing);
            let got = a.get(&thread).map_or(&[][..], |v| v);
            let mut from = 0;
            for &end in &s.ends {
                let want = &s.hits[from..end];
                let have = &got[from.min(got.len())..end.min(got.len())];
                let (mut x, mut y) = (want.to_vec(), have.to_vec());
                x.sort();
                y.sort();
                if x != y {
                    let more = &got[from.min(got.len())..(end + 2).min(got.len())];
                    return Err(Box::new(Difference {
                        epoch: n,
                        thread,
                        expected: want.to_vec(),
                        got: more.to_vec(),
                        what: format!("hit {from} of {} (got {})", s.hits.len(), got.len()),
                    }));
                }
                from = end;
            }
            if from < got.len() {
                return Err(Box::new(Difference {
                    epoch: n,
                    thread,
                    expected: vec![],
                    got: got[from..(from + 3).min(got.len())].to_vec(),
                    what: format!("{} hits too many", got.len() - from),
                }));
            }
            equal += from as u64;
        }
    }
    Ok(equal)
}
