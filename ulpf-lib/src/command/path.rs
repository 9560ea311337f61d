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
//!         | '@counted,' LINK ',' COUNT ',' OFFSET to each node of a list, whose length is told there
//!         | '@tree,' LEFT ',' RIGHT ',' COUNT ',' OFFSET    to each node of a tree, in order; the pointer there leads to its root
//!         | '@btree,' HEIGHT ',' LEN ',' EDGES ',' ROOM ',' STRIDE ',' OFFSET
//!                                                 to each value in Rust's BTreeMap, in order
//!         | '@table,' MASK ',' STRIDE ',' OFFSET  to each full place of hashbrown's table, whose control bytes are there
//!         | '@ring,' CAPACITY ',' HEAD ',' AT ',' ELEMENTS   to each of so many elements of a ring
//!         | '@chunks,' END ',' MAP ',' ELEMENTS   to each element of libstdc++'s deque, whose first iterator is there
//!         | '@short,' FLAG ',' COUNT ',' INSIDE ',' ELEMENTS
//!                                                 to each character of libc++'s string, the pointer to which is there
//!         | '@if,' AT ',' SIZE ',' OFFSET         only while the bytes there are not all zero
//!         | '@is,' AT ',' SIZE ',' FIRST ',' COUNT ',' OFFSET    only while the number there is one of so many
//!         | '@not,' AT ',' SIZE ',' FIRST ',' COUNT ',' OFFSET   only while it is none of them
//!         | '@frames,' OFFSET                     to each frame of the function that begins there; the first step only
//!         | '@threads,' OFFSET                    to each thread's pointer to its own data (fs base); the first step only
//! ELEMENTS := STRIDE ',' FROM ',' TO ',' OFFSET   those numbered FROM to the one before TO (-1: all)
//!
//! 0x4040>16               p->x: the pointer at 0x4040, and 16 bytes behind what it points to
//! 0x4040>8>-4             p->q->y: the pointer at 0x4040; 8 bytes behind, another; 4 bytes before what that points to
//! 0x4040@list,8,4         list->*next.refs: nodes with their link at 8, and 4 bytes behind the beginning of each
//! 0x4040@span,8,24,0,-1,0 v[*] of elements of 24 bytes, whose end is told by the pointer at 0x4048
//! 0x1149@frames,-20       a local of the function at 0x1149, 20 bytes below its caller's frame
//! ```
//! Each step begins where the one before has led, and adds its OFFSET to what it comes to. LINK, LEFT, RIGHT, LEN, EDGES
//! are offsets in a node; END, AT, COUNT, HEIGHT, MASK, CAPACITY, HEAD, MAP from where the step begins: of the node that is
//! none but the list's end, of what says how many elements there are, and so on. One step may have many places; each of
//! them has a number, from 0 (or FROM) on. [`Path::trace`] goes the way. Which frames
//! there are is told from outside ([`Path::begin_frame`]); a frame is where the stack pointer is when the function has
//! returned (its canonical frame address, DWARF 5, 6.4), and all of them are one place.

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
        /// What says how many nodes there are, from there: while there are fewer, those that have been there are, too.
        count: Option<u64>,
    },
    /// To each node of a binary tree, in order. The pointer there leads to the root.
    Tree {
        /// Where a node has its pointers: to what comes before it …
        left: u64,
        /// … and behind it.
        right: u64,
        /// What says how many nodes there are, from there.
        count: u64,
    },
    /// To each value of a B-tree of Rust's standard library, in order. The pointer there leads to the root.
    Btree {
        /// How many levels are below the root, from there.
        height: u64,
        /// Where a node has the number of its values (two bytes) …
        len: u64,
        /// … and the pointers to the nodes below.
        edges: u64,
        /// So many values may a node have.
        room: u64,
        /// From one value to the next.
        stride: u64,
    },
    /// To each full place of a hash table (hashbrown, as in Rust's standard library). The pointer there leads to its
    /// control bytes, before which the places are.
    Table {
        /// The number of places less one, from there.
        mask: u64,
        /// From one place to the one before.
        stride: u64,
    },
    /// To each element of a ring. The pointer there leads to its memory.
    Ring {
        /// So many places it has (eight bytes, from there).
        capacity: u64,
        /// The number of the first place in use.
        head: u64,
        /// So many are in use.
        count: u64,
        /// From one to the next.
        stride: u64,
        /// The number of the first one that is meant.
        from: u64,
        /// The number behind the last one that is meant.
        to: u64,
    },
    /// To each element of a deque (libstdc++), whose first iterator is there: the pointers to the element, to the
    /// beginning and the end of its chunk, and to that chunk's pointer.
    Chunks {
        /// The iterator behind the last element, from there.
        finish: u64,
        /// The pointer to the pointers to the chunks, and behind it their number, from there.
        map: u64,
        /// From one to the next.
        stride: u64,
        /// The number of the first one that is meant.
        from: u64,
        /// The number behind the last one that is meant.
        to: u64,
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
    /// To each element of a text that may be in the object itself (libc++). The pointer to it is there, if it is elsewhere.
    Short {
        /// A byte, whose lowest bit says that it is elsewhere; else half of it is how many elements are in the object.
        flag: u64,
        /// How many elements it has elsewhere, from there.
        count: u64,
        /// Where it is in the object, from there.
        inside: u64,
        /// From one to the next.
        stride: u64,
        /// The number of the first one that is meant.
        from: u64,
        /// The number behind the last one that is meant.
        to: u64,
    },
    /// Only while there is something.
    If {
        /// What says so, from there.
        at: u64,
        /// Its bytes.
        size: u64,
    },
    /// Only while a number says so.
    Is {
        /// The number, from there.
        at: u64,
        /// Its bytes.
        size: u64,
        /// The first of some numbers.
        first: u64,
        /// So many they are; they may wrap.
        count: u64,
        /// It is one of them; else none.
        inside: bool,
    },
    /// To each frame of the function that begins there.
    Frames,
    /// To each thread's pointer to its own data.
    Threads,
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
    /// Where the frames are that there are, or the threads' pointers.
    pub(super) frames: Vec<u64>,
}

impl Step {
    /// May it come to many places?
    pub fn is_many(&self) -> bool {
        !matches!(
            self,
            Step::Pointer | Step::If { .. } | Step::Is { .. } | Step::Frames
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
        let first_only = |step: &Step| matches!(step, Step::Frames | Step::Threads);
        if steps.iter().skip(1).any(|(step, _)| first_only(step)) {
            return Err("frames and threads are where a path begins".into());
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
            Step::If { size, .. } | Step::Is { size, .. } => matches!(size, 1..=8),
            Step::Btree { room, stride, .. } => matches!(room, 1..=64) && stride > 0,
            Step::Table { stride, .. }
            | Step::Ring { stride, .. }
            | Step::Chunks { stride, .. }
            | Step::Short { stride, .. } => stride > 0 && stride < LONGEST,
            Step::Pointer
            | Step::List { .. }
            | Step::Tree { .. }
            | Step::Frames
            | Step::Threads => true,
        };
        match steps.iter().all(|(step, _)| sensible(step)) {
            true => Ok(Path {
                base,
                steps,
                most: None,
                frames: Vec::new(),
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

    /// Where the function begins whose frames it leads to, if it does.
    pub fn function(&self) -> Option<u64> {
        let frames = matches!(self.steps.first(), Some((Step::Frames, _)));
        frames.then_some(self.base)
    }

    /// Does it lead to each thread's own data?
    pub fn is_of_threads(&self) -> bool {
        matches!(self.steps.first(), Some((Step::Threads, _)))
    }

    /// These are the pointers of the threads that there are now.
    pub fn set_threads(&mut self, pointers: &[u64]) {
        self.frames.clear();
        self.frames.extend_from_slice(pointers);
    }

    /// The function has been entered, and this is the new frame.
    pub fn begin_frame(&mut self, at: u64) {
        self.frames.push(at);
    }

    /// It has left this one. False: there was none there.
    pub fn end_frame(&mut self, at: u64) -> bool {
        let found = self.frames.iter().rposition(|frame| *frame == at);
        found.map(|n| self.frames.remove(n)).is_some()
    }

    /// So many places at most.
    pub fn most(&self) -> u64 {
        self.most.unwrap_or(MOST_FOLLOWED)
    }

    /// The number of the first place.
    pub fn first(&self) -> u64 {
        let from = self.steps.iter().find_map(|(step, _)| match step {
            Step::Elements { from, .. }
            | Step::Ring { from, .. }
            | Step::Chunks { from, .. }
            | Step::Short { from, .. } => Some(*from),
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

/// As they stand behind a step's name.
fn numbers(all: &[u64]) -> String {
    all.iter()
        .map(|n| alloc::format!(",{}", *n as i64))
        .collect()
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
                count: None,
            },
            offset,
        ),
        ("list", &[link, offset, end]) => (
            Step::List {
                link,
                pointer: true,
                end: Some(end),
                count: None,
            },
            offset,
        ),
        ("nodes", &[link, offset]) => (
            Step::List {
                link,
                pointer: false,
                end: None,
                count: None,
            },
            offset,
        ),
        ("counted", &[link, count, offset]) => (
            Step::List {
                link,
                pointer: true,
                end: None,
                count: Some(count),
            },
            offset,
        ),
        ("tree", &[left, right, count, offset]) => (Step::Tree { left, right, count }, offset),
        ("btree", &[height, len, edges, room, stride, offset]) => (
            Step::Btree {
                height,
                len,
                edges,
                room,
                stride,
            },
            offset,
        ),
        ("table", &[mask, stride, offset]) => (Step::Table { mask, stride }, offset),
        ("ring", &[capacity, head, count, stride, from, to, offset]) => (
            Step::Ring {
                capacity,
                head,
                count,
                stride,
                from,
                to,
            },
            offset,
        ),
        ("chunks", &[finish, map, stride, from, to, offset]) => (
            Step::Chunks {
                finish,
                map,
                stride,
                from,
                to,
            },
            offset,
        ),
        ("short", &[flag, count, inside, stride, from, to, offset]) => (
            Step::Short {
                flag,
                count,
                inside,
                stride,
                from,
                to,
            },
            offset,
        ),
        ("is" | "not", &[at, size, first, count, offset]) => (
            Step::Is {
                at,
                size,
                first,
                count,
                inside: name == "is",
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
        ("frames", &[offset]) => (Step::Frames, offset),
        ("threads", &[offset]) => (Step::Threads, offset),
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
                Step::List {
                    link,
                    pointer,
                    end,
                    count,
                } => {
                    let name = match (pointer, count) {
                        (_, Some(_)) => "counted",
                        (true, None) => "list",
                        (false, None) => "nodes",
                    };
                    let count = count.map(|count| numbers(&[count])).unwrap_or_default();
                    write!(f, "@{name},{}{count},{offset}", link as i64)?;
                    end.map_or(Ok(()), |end| write!(f, ",{}", end as i64))
                }
                Step::Tree { left, right, count } => {
                    write!(f, "@tree{},{offset}", numbers(&[left, right, count]))
                }
                Step::Btree {
                    height,
                    len,
                    edges,
                    room,
                    stride,
                } => {
                    let numbers = numbers(&[height, len, edges, room, stride]);
                    write!(f, "@btree{numbers},{offset}")
                }
                Step::Table { mask, stride } => {
                    write!(f, "@table{},{offset}", numbers(&[mask, stride]))
                }
                Step::Ring {
                    capacity,
                    head,
                    count,
                    stride,
                    from,
                    to,
                } => {
                    let numbers = numbers(&[capacity, head, count, stride, from, to]);
                    write!(f, "@ring{numbers},{offset}")
                }
                Step::Chunks {
                    finish,
                    map,
                    stride,
                    from,
                    to,
                } => {
                    let numbers = numbers(&[finish, map, stride, from, to]);
                    write!(f, "@chunks{numbers},{offset}")
                }
                Step::Short {
                    flag,
                    count,
                    inside,
                    stride,
                    from,
                    to,
                } => {
                    let numbers = numbers(&[flag, count, inside, stride, from, to]);
                    write!(f, "@short{numbers},{offset}")
                }
                Step::Is {
                    at,
                    size,
                    first,
                    count,
                    inside,
                } => {
                    let name = if inside { "is" } else { "not" };
                    write!(f, "@{name}{},{offset}", numbers(&[at, size, first, count]))
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
                Step::Frames => write!(f, "@frames,{offset}"),
                Step::Threads => write!(f, "@threads,{offset}"),
            }?;
        }
        self.most.map_or(Ok(()), |most| write!(f, "@most,{most}"))
    }
}

#[cfg(test)]
mod tests;
