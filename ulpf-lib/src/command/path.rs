//! Where a watch that follows finds its bytes.
//!
//! ```text
//! PATH   := ADDR STEP+ ['@most,' N]
//! STEP   := '>' OFFSET                            through the pointer there
//!         | '@list,' LINK ',' OFFSET [',' END]    to each node of a list, the first of which the pointer there leads to
//!         | '@nodes,' LINK ',' OFFSET             to each node of a list, the first of which is there
//!         | '@span,' END ',' ELEMENTS             to each element from where the pointer there leads to where another does
//!         | '@count,' AT ',' SIZE ',' ELEMENTS    to each of so many elements from where the pointer there leads
//!         | '@times,' COUNT ',' STRIDE ',' OFFSET to each of so many elements that begin there
//!         | '@if,' AT ',' SIZE ',' OFFSET         only while the bytes there are not all zero
//! ELEMENTS := STRIDE ',' FROM ',' TO ',' OFFSET   those numbered FROM to the one before TO (-1: all)
//!
//! 0x4040>16               p->x: the pointer at 0x4040, and 16 bytes behind what it points to
//! 0x4040>8>-4             p->q->y: the pointer at 0x4040; 8 bytes behind, another; 4 bytes before what that points to
//! 0x4040@list,8,4         list->*next.refs: nodes with their link at 8, and 4 bytes behind the beginning of each
//! 0x4040@span,8,24,0,-1,0 v[*] of elements of 24 bytes, whose end is told by the pointer at 0x4048
//! ```
//! Each step begins where the one before has led, and adds its OFFSET to what it comes to. LINK, END, AT are offsets: of
//! the link in a node; of the node that is none but the list's end; of what says how many elements there are. One step
//! may have many places; each of them has a number, from 0 (or FROM) on. [`Path::trace`] goes the way.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::number::number;

/// Steps on the way of one watch, at most: through so many pointers.
pub const MOST_POINTERS: usize = 16;
/// Watches of one program that follow, at most: each change of a pointer looks at all of them.
pub const MOST_PATHS: usize = 4096;
/// Places of one watch, where it does not say how many.
pub const MOST_FOLLOWED: u64 = 100_000;
/// What a watch may say.
const MOST_OF_ALL: u64 = 1 << 24;
/// A span of memory has fewer bytes than that.
pub(super) const LONGEST: u64 = 1 << 40;

/// How a step comes to what the next one begins with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Through the pointer there.
    Pointer,
    /// To each node of a list.
    List {
        /// Where a node has the pointer to the next one.
        link: u64,
        /// The pointer to the first node is there; else the first node is.
        pointer: bool,
        /// The node that ends it, as null does, from there.
        end: Option<u64>,
    },
    /// To each element from where the pointer there leads.
    Elements {
        /// What says how many they are.
        until: Until,
        /// From one to the next.
        stride: u64,
        /// The number of the first one that is meant.
        from: u64,
        /// The number behind the last one that is meant.
        to: u64,
    },
    /// To each of the elements that begin there.
    Times {
        /// How many.
        count: u64,
        /// From one to the next.
        stride: u64,
    },
    /// Only while there is something.
    If {
        /// What says so, from there.
        at: u64,
        /// Its bytes.
        size: u64,
    },
}

/// What says how many elements there are, from the pointer to the first one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Until {
    /// A pointer behind the last one.
    Pointer(u64),
    /// A number of so many bytes.
    Count(u64, u64),
}

/// An address, and the steps from there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Path {
    pub(super) base: u64,
    /// What each adds to what it comes to, too.
    pub(super) steps: Vec<(Step, u64)>,
    pub(super) most: Option<u64>,
}

impl Step {
    /// May it come to many places?
    pub fn is_many(&self) -> bool {
        matches!(
            self,
            Step::List { .. } | Step::Elements { .. } | Step::Times { .. }
        )
    }
}

impl Path {
    /// The first step is made at `base`; each offset is added, and may wrap, to what its step comes to.
    ///
    /// # Errors
    /// Why this is no path that can be followed.
    pub fn new(base: u64, steps: Vec<(Step, u64)>) -> Result<Path, String> {
        match steps.len() {
            0 => return Err("a path has a step at least".into()),
            1..=MOST_POINTERS => {}
            n => {
                return Err(alloc::format!(
                    "{n} pointers are on the way, and {MOST_POINTERS} at most are followed"
                ));
            }
        }
        if steps.iter().filter(|(step, _)| step.is_many()).count() > 1 {
            return Err("two steps of a path have many places, and one at most may".into());
        }
        if steps
            .iter()
            .all(|(step, _)| matches!(step, Step::Times { .. }))
        {
            return Err("nothing on the way may change".into());
        }
        let sensible = |step: &Step| match *step {
            Step::Elements { until, stride, .. } => {
                let size = match until {
                    Until::Pointer(_) => 8,
                    Until::Count(_, size) => size,
                };
                stride > 0 && matches!(size, 1..=8)
            }
            Step::Times { count, stride } => {
                count.checked_mul(stride).is_some_and(|len| len < LONGEST)
            }
            Step::If { size, .. } => matches!(size, 1..=8),
            Step::Pointer | Step::List { .. } => true,
        };
        match steps.iter().all(|(step, _)| sensible(step)) {
            true => Ok(Path {
                base,
                steps,
                most: None,
            }),
            false => Err("a size in the path is zero or too large".into()),
        }
    }

    /// The same with so many places at most.
    #[must_use]
    pub fn with_most(self, most: u64) -> Path {
        let most = Some(most.clamp(1, MOST_OF_ALL));
        Path { most, ..self }
    }

    /// Where the first step is made.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// May it come to many places?
    pub fn is_many(&self) -> bool {
        self.steps.iter().any(|(step, _)| step.is_many())
    }

    /// So many places at most.
    pub fn most(&self) -> u64 {
        self.most.unwrap_or(MOST_FOLLOWED)
    }

    /// The number of the first place.
    pub fn first(&self) -> u64 {
        let from = self.steps.iter().find_map(|(step, _)| match step {
            Step::Elements { from, .. } => Some(*from),
            _ => None,
        });
        from.unwrap_or(0)
    }

    /// `None`: the word is no path.
    pub fn parse(word: &str) -> Option<Result<Path, String>> {
        let start = word.find(['>', '@'])?;
        let (base, mut rest) = word.split_at_checked(start)?;
        let base = number(Some(base))?;
        let (mut steps, mut most) = (Vec::new(), None);
        while !rest.is_empty() {
            if most.is_some() {
                return None;
            }
            let body = rest.get(1..)?;
            let end = body.find(['>', '@']).unwrap_or(body.len());
            let (said, after) = body.split_at_checked(end)?;
            match rest.starts_with('>') {
                true => steps.push((Step::Pointer, offset(said)?)),
                false => match said.strip_prefix("most,") {
                    Some(n) => most = Some(number(Some(n))?),
                    None => steps.push(step(said)?),
                },
            }
            rest = after;
        }
        let path = Path::new(base, steps);
        Some(path.map(|path| match most {
            Some(most) => path.with_most(most),
            None => path,
        }))
    }
}

fn offset(word: &str) -> Option<u64> {
    match word.strip_prefix('-') {
        Some(word) => number(Some(word)).map(u64::wrapping_neg),
        None => number(Some(word)),
    }
}

fn step(said: &str) -> Option<(Step, u64)> {
    let (name, numbers) = said.split_once(',')?;
    let numbers: Option<Vec<u64>> = numbers.split(',').map(offset).collect();
    let numbers = numbers?;
    let elements = |until, rest: [u64; 3]| {
        let [stride, from, to] = rest;
        Step::Elements {
            until,
            stride,
            from,
            to,
        }
    };
    Some(match (name, numbers.as_slice()) {
        ("list", &[link, offset]) => (
            Step::List {
                link,
                pointer: true,
                end: None,
            },
            offset,
        ),
        ("list", &[link, offset, end]) => (
            Step::List {
                link,
                pointer: true,
                end: Some(end),
            },
            offset,
        ),
        ("nodes", &[link, offset]) => (
            Step::List {
                link,
                pointer: false,
                end: None,
            },
            offset,
        ),
        ("span", &[end, stride, from, to, offset]) => {
            (elements(Until::Pointer(end), [stride, from, to]), offset)
        }
        ("count", &[at, size, stride, from, to, offset]) => {
            (elements(Until::Count(at, size), [stride, from, to]), offset)
        }
        ("times", &[count, stride, offset]) => (Step::Times { count, stride }, offset),
        ("if", &[at, size, offset]) => (Step::If { at, size }, offset),
        _ => return None,
    })
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{:#x}", self.base)?;
        for (step, offset) in &self.steps {
            let offset = *offset as i64;
            match *step {
                Step::Pointer => write!(f, ">{offset}"),
                Step::List { link, pointer, end } => {
                    let name = if pointer { "list" } else { "nodes" };
                    write!(f, "@{name},{},{offset}", link as i64)?;
                    end.map_or(Ok(()), |end| write!(f, ",{}", end as i64))
                }
                Step::Elements {
                    until,
                    stride,
                    from,
                    to,
                } => {
                    match until {
                        Until::Pointer(end) => write!(f, "@span,{}", end as i64),
                        Until::Count(at, size) => write!(f, "@count,{},{size}", at as i64),
                    }?;
                    write!(f, ",{stride},{from},{},{offset}", to as i64)
                }
                Step::Times { count, stride } => write!(f, "@times,{count},{stride},{offset}"),
                Step::If { at, size } => write!(f, "@if,{},{size},{offset}", at as i64),
            }?;
        }
        self.most.map_or(Ok(()), |most| write!(f, "@most,{most}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn as_it_is_written() {
        for word in [
            "0x4040>16",
            "0x4040>8>-4",
            "0x0>0>0",
            "0x4040@list,8,4",
            "0x4040@list,0,16,-8",
            "0x4040>16@nodes,8,4>24",
            "0x4040@span,8,24,0,-1,0",
            "0x4040@count,8,8,4,2,5,0@most,1000000",
            "0x4040@times,8,8,0>16",
            "0x4040@if,16,1,0>8",
        ] {
            let path = Path::parse(word).unwrap().unwrap();
            assert_eq!(path.to_string(), word);
        }
        for word in [
            "0x4040",
            "0x4040>",
            ">8",
            "0x4040>x",
            "0x4040>8>",
            "0x4040>--8",
            "0x4040@list,8",
            "0x4040@list,8,4,4,4",
            "0x4040@tree,8,4",
            "0x4040@most,1>8",
            "0x4040@",
        ] {
            assert_eq!(Path::parse(word), None, "{word}");
        }
        let long = |n: usize| Path::parse(&("0x4040".to_string() + &">0".repeat(n))).unwrap();
        assert!(long(MOST_POINTERS).is_ok() && long(MOST_POINTERS + 1).is_err());
        for senseless in [
            "0x4040@span,8,0,0,-1,0",
            "0x4040@count,8,9,4,0,-1,0",
            "0x4040@times,8,8,0",
            "0x4040@times,-1,8,0>8",
            "0x4040@if,8,0,0",
            "0x4040@list,8,0@list,8,0",
            "0x4040@most,5",
        ] {
            assert!(Path::parse(senseless).unwrap().is_err(), "{senseless}");
        }
        let most = |word: &str| Path::parse(word).unwrap().unwrap().most();
        assert_eq!(most("0x4040@list,8,4@most,0"), 1);
        assert_eq!(most("0x4040@list,8,4@most,0xffffffffffff"), MOST_OF_ALL);
        assert_eq!(most("0x4040@list,8,4"), MOST_FOLLOWED);
    }
}
