//! Filters: decide which hits of a watch matter.
//!
//! ```text
//! hit ─▶ changed ─▶ thread ─▶ PC ─▶ caller ─▶ conditions ─▶ skip, count ─▶ logged, a stop
//!           └──────────┴────────┴──────┴───────────┴─────────────┴───────▶ counted as rejected
//! ```
//! The stub evaluates a filter on the thread that made the access, the bridge while the machine is stopped. The
//! evaluation allocates nothing, takes no lock and formats nothing. Cheap tests come first. A condition that cannot be
//! evaluated counts as true, as a breakpoint's does in gdb: no hit is lost, and the caller tells the user.
//!
//! `words` reads and prints a filter as `monitor ulpf watch` and `monitor ulpf filter` take it.

use alloc::vec::Vec;
use core::ops::Range;

use crate::agent::{self, AgentContext, AgentError, variable};
use crate::watch::AccessKind;

mod words;

/// Elements of one access for which a condition is evaluated; with more it counts as true.
const MOST_ELEMENTS: u32 = 4096;
/// Bytes of a value that conditions see.
const MOST_VALUE: u64 = 8;
/// Longest bytecode: its jumps have 16 bits.
const MOST_CODE: usize = 1 << 16;

/// The default lets every hit pass.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Filter {
    /// Only accesses that leave another value.
    pub changed: bool,
    /// Only hits of this thread.
    pub thread: Option<Thread>,
    /// Addresses of the instruction.
    pub pc: Option<Ranges>,
    /// Addresses of the call of its function. (The bridge's front end refuses such a filter.)
    pub caller: Option<Ranges>,
    /// Size of the values that conditions see, in bytes: the watch is an array of them. 0: see [`Filter::unit_of`].
    pub unit: u64,
    /// All of them must hold.
    pub conditions: Vec<Condition>,
    /// Of the hits that pass all other tests, this number is rejected first,
    pub skip: u64,
    /// and this number passes then (`None`: all).
    pub count: Option<u64>,
}

/// A thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Thread {
    /// The thread whose id is the process's.
    Main,
    /// As the kernel, or the back end, numbers threads.
    Id(u64),
}

/// Addresses inside or outside of these.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ranges {
    inside: bool,
    /// `[start, end)`, ascending and disjoint.
    list: Vec<(u64, u64)>,
}

impl Ranges {
    /// Makes ranges from a list in any order; empty ranges are dropped.
    pub fn new(inside: bool, mut list: Vec<(u64, u64)>) -> Ranges {
        list.retain(|r| r.0 < r.1);
        list.sort_unstable();
        // Overlapping ones become one.
        list.dedup_by(|next, before| {
            let joins = next.0 <= before.1;
            if joins {
                before.1 = before.1.max(next.1);
            }
            joins
        });
        Ranges { inside, list }
    }

    /// `[start, end)`, ascending and disjoint.
    pub fn list(&self) -> &[(u64, u64)] {
        &self.list
    }

    #[inline]
    fn contain(&self, at: u64) -> bool {
        let after = self.list.partition_point(|r| r.0 <= at);
        let before = after.checked_sub(1).and_then(|n| self.list.get(n));
        before.is_some_and(|r| at < r.1)
    }

    #[inline]
    fn let_pass(&self, at: u64) -> bool {
        self.contain(at) == self.inside
    }
}

/// A GDB agent expression that knows all of its opcodes; [`variable`] lists what it sees of the hit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Condition {
    code: Vec<u8>,
    /// It reads a value or an address, so it is evaluated for each element.
    by_element: bool,
}

impl Condition {
    /// Scans the bytecode once.
    ///
    /// # Errors
    /// The bytecode is too long, or has an opcode that is not supported.
    pub fn new(code: Vec<u8>) -> Result<Condition, &'static str> {
        if code.len() >= MOST_CODE {
            return Err("the bytecode is too long");
        }
        let mut by_element = false;
        let see = |v| by_element |= matches!(v, variable::OLD | variable::NEW | variable::ADDR);
        match agent::variables(&code, see) {
            true => Ok(Condition { code, by_element }),
            false => Err("the bytecode has an opcode that is not supported, or is cut off"),
        }
    }

    /// The bytecode.
    pub fn code(&self) -> &[u8] {
        &self.code
    }
}

/// A counted hit, to be judged by a filter.
pub struct Candidate<'a> {
    /// The instruction that made the access.
    pub pc: u64,
    /// The thread that made the access.
    pub thread: u64,
    /// Kind of the access.
    pub kind: AccessKind,
    /// The bytes that access and watch have in common.
    pub start: u64,
    /// Number of these bytes.
    pub len: u64,
    /// The watch's bytes.
    pub watch: Range<u64>,
    /// The old bytes at `start`, possibly truncated; `None` if not known.
    pub old: Option<&'a [u8]>,
    /// A write that left the value as it was.
    pub silent: bool,
    /// Number of hits of this watch, including this one.
    pub number: u64,
    /// [`Filter::unit_of`] the watch.
    pub unit: u64,
}

/// The program behind the hit, as it is after the instruction.
pub trait Program {
    /// The register with this number of the remote protocol.
    fn register(&mut self, number: u16) -> Option<u64>;
    /// Returns false if a byte is unreadable.
    fn read(&mut self, addr: u64, to: &mut [u8]) -> bool;
    /// The number of the process.
    fn process(&mut self) -> u64;
    /// fs_base.
    fn thread_pointer(&mut self) -> Option<u64>;
    /// Addresses within the calls that may have led to the function: one of them is its caller.
    fn callers(&mut self) -> [Option<u64>; 2] {
        [None; 2]
    }
}

/// A filter's decision about a hit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// Whether the hit matters.
    pub passes: bool,
    /// The first condition that could not be evaluated, and so counted as true.
    pub failed: Option<AgentError>,
}

impl Verdict {
    const fn of(passes: bool) -> Verdict {
        Verdict {
            passes,
            failed: None,
        }
    }
}

impl Filter {
    /// Size of the values that conditions see in a watch of `len` bytes (`None`: the heap). It is the unit that was set,
    /// or the watch's size up to eight bytes. 0 is the size of the access.
    pub fn unit_of(&self, len: Option<u64>) -> u64 {
        match (self.unit, len) {
            (0, Some(len @ 1..=MOST_VALUE)) => len,
            (unit, _) => unit,
        }
    }

    /// `passed`: number of hits, this one included, that have passed all tests but `skip` and `count`.
    #[inline]
    pub fn passes<P: Program>(
        &self,
        c: &Candidate,
        program: &mut P,
        passed: impl FnOnce() -> u64,
    ) -> Verdict {
        if self.changed && (c.silent || !c.kind.writes()) {
            return Verdict::of(false);
        }
        match self.thread {
            Some(Thread::Id(id)) if id != c.thread => return Verdict::of(false),
            Some(Thread::Main) if program.process() != c.thread => return Verdict::of(false),
            _ => {}
        }
        if self.pc.as_ref().is_some_and(|r| !r.let_pass(c.pc)) {
            return Verdict::of(false);
        }
        if let Some(r) = &self.caller
            && program
                .callers()
                .into_iter()
                .flatten()
                .any(|at| r.contain(at))
                != r.inside
        {
            return Verdict::of(false);
        }
        let mut verdict = match self.conditions.is_empty() {
            true => Verdict::of(true),
            false => self.conditions_hold(c, program),
        };
        if verdict.passes && (self.skip > 0 || self.count.is_some()) {
            let done = passed().checked_sub(self.skip);
            verdict.passes = done.is_some_and(|n| self.count.is_none_or(|count| n < count));
        }
        verdict
    }

    fn conditions_hold<P: Program>(&self, c: &Candidate, program: &mut P) -> Verdict {
        let mut failed = None;
        let end = c.start.saturating_add(c.len);
        let mut at = c.start;
        if c.unit != 0 {
            at -= c.start.saturating_sub(c.watch.start) % c.unit;
        }
        for _ in 0..MOST_ELEMENTS {
            let len = match c.unit {
                0 => end.saturating_sub(at).min(MOST_VALUE),
                unit => unit.min(c.watch.end.saturating_sub(at)),
            };
            let mut element = Element {
                candidate: c,
                at,
                len,
                program: &mut *program,
            };
            let mut all = true;
            for condition in &self.conditions {
                match agent::eval(&condition.code, &mut element) {
                    Ok(0) => {
                        all = false;
                        break;
                    }
                    Ok(_) => {}
                    Err(e) => failed = failed.or(Some(e)),
                }
            }
            at = at.saturating_add(c.unit);
            if all || c.unit == 0 || at >= end || !self.conditions.iter().any(|c| c.by_element) {
                return Verdict {
                    passes: all,
                    failed,
                };
            }
        }
        Verdict {
            passes: true,
            failed,
        }
    }
}

/// One element of a hit, for agent expressions.
struct Element<'a, P> {
    candidate: &'a Candidate<'a>,
    at: u64,
    len: u64,
    program: &'a mut P,
}

impl<P: Program> Element<'_, P> {
    fn new_bytes(&mut self) -> Option<[u8; 8]> {
        let mut bytes = [0; 8];
        let to = bytes.get_mut(..usize::try_from(self.len).ok()?)?;
        self.program.read(self.at, to).then_some(bytes)
    }

    /// The old bytes of the access, with the unchanged bytes beside it.
    fn old_bytes(&mut self) -> Option<[u8; 8]> {
        let mut bytes = self.new_bytes()?;
        let c = self.candidate;
        if c.kind.writes() {
            let from = self.at.max(c.start);
            let end = self.at.saturating_add(self.len);
            let end = end.min(c.start.saturating_add(c.len));
            let part = (from - c.start) as usize..end.checked_sub(c.start)? as usize;
            let to = (from - self.at) as usize..end.checked_sub(self.at)? as usize;
            bytes.get_mut(to)?.copy_from_slice(c.old?.get(part)?);
        }
        Some(bytes)
    }
}

impl<P: Program> AgentContext for Element<'_, P> {
    fn reg(&mut self, number: u16) -> Option<u64> {
        self.program.register(number)
    }
    fn read(&mut self, addr: u64, to: &mut [u8]) -> bool {
        self.program.read(addr, to)
    }
    fn variable(&mut self, number: u16) -> Option<u64> {
        let c = self.candidate;
        Some(match number {
            variable::OLD => u64::from_le_bytes(self.old_bytes()?),
            variable::NEW => u64::from_le_bytes(self.new_bytes()?),
            variable::ADDR => self.at,
            variable::LEN => c.len,
            variable::TID => c.thread,
            variable::PID => self.program.process(),
            variable::KIND => c.kind as u64,
            variable::HITS => c.number,
            variable::PC => c.pc,
            variable::THREAD_POINTER => self.program.thread_pointer()?,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests;
