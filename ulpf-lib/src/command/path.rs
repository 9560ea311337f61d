//! The path by which a following watch finds its bytes.
//!
//! ```text
//!     PATH   := ADDR STEP+ ['@most,' N]
//!     STEP   := '>' OFFSET                            through the pointer there
//!             | '@list,' LINK ',' OFFSET [',' END]    to each node of a list; the pointer there leads to the first
//!             | '@nodes,' LINK ',' OFFSET             to each node of a list; the first is there
//!             | '@span,' END ',' ELEMENTS             to each element between two pointers, the first of which is there
//!             | '@count,' AT ',' SIZE ',' ELEMENTS    to each of a counted number of elements behind the pointer there
//!             | '@times,' COUNT ',' STRIDE ',' OFFSET to each of COUNT elements that begin there
//!             | '@counted,' LINK ',' COUNT ',' OFFSET to each node of a list whose length is stored at COUNT
//!             | '@btree,' HEIGHT ',' LEN ',' EDGES ',' ROOM ',' STRIDE ',' OFFSET
//!                                                     to each value in Rust's BTreeMap, in order
//!             | '@table,' MASK ',' STRIDE ',' OFFSET  to each full place of hashbrown's table; its control bytes are there
//!             | '@slots,' MASK ',' SLOTS ',' STRIDE ',' OFFSET   the same, with the places behind the pointer at SLOTS
//!             | '@ring,' CAPACITY ',' HEAD ',' AT ',' ELEMENTS   to each element of a ring buffer
//!             | '@chunks,' END ',' MAP ',' ELEMENTS   to each element of libstdc++'s deque, whose first iterator is there
//!             | '@short,' FLAG ',' COUNT ',' INSIDE ',' ELEMENTS
//!                                                     to each character of libc++'s string, the pointer to which is there
//!             | '@if,' AT ',' SIZE ',' OFFSET         only while the bytes there are not all zero
//!             | '@is,' AT ',' SIZE ',' FIRST ',' COUNT ',' OFFSET  only while the number there is one of COUNT from FIRST on
//!             | '@not,' AT ',' SIZE ',' FIRST ',' COUNT ',' OFFSET   only while it is outside of them
//!             | '@frames,' OFFSET                     to each frame of the function that begins there; the first step only
//!             | '@threads,' OFFSET                    to each thread's pointer to its own data (fs base); the first step only
//!     ELEMENTS := STRIDE ',' FROM ',' TO ',' OFFSET   those numbered FROM to the one before TO (-1: all)
//!
//!     0x4040>16               p->x: the pointer at 0x4040, and 16 bytes behind what it points to
//!     0x4040>8>-4             p->q->y: the pointer at 0x4040; 8 bytes behind, another; 4 bytes before its target
//!     0x4040@list,8,4         list->*next.refs: nodes with their link at 8, and 4 bytes behind the beginning of each
//!     0x4040@span,8,24,0,-1,0 v[*] of elements of 24 bytes, whose end is the pointer at 0x4048
//!     0x1149@frames,-20       a local of the function at 0x1149, 20 bytes below its caller's frame
//! ```
//! Each step begins where the one before has led, and adds its OFFSET to the address that it reaches.
//!
//! * LINK, LEFT, RIGHT, LEN and EDGES are offsets in a node.
//! * END, AT, COUNT, HEIGHT, MASK, CAPACITY, HEAD and MAP are offsets from where the step begins: of the list's sentinel,
//!   of the number of elements, and so on.
//! * One step may lead to many places. Each place has a number, from 0 (or FROM) on.
//!
//! [`Path::trace`] evaluates the path. The caller reports frames ([`Path::begin_frame`]). A frame's address is the stack
//! pointer after the function has returned (its canonical frame address, DWARF 5, 6.4). All frames count as one place.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::number::number;

/// Maximum number of steps of a path, and so of pointers that it follows.
pub const MOST_POINTERS: usize = 16;
/// Maximum number of following watches of one program: each change of a pointer looks at all of them.
pub const MOST_PATHS: usize = 4096;
/// Default maximum of places of one watch.
pub const MOST_FOLLOWED: u64 = 100_000;
/// Largest maximum of places that a watch may set.
const MOST_OF_ALL: u64 = 1 << 24;
/// Upper bound of the bytes of a span of memory.
pub(super) const LONGEST: u64 = 1 << 40;

/// How a step finds the addresses at which the next one begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Through the pointer there.
    Pointer,
    /// To each node of a list.
    List {
        /// Offset of the pointer to the next node.
        link: u64,
        /// True if the pointer to the first node is there; false if the first node itself is.
        pointer: bool,
        /// Offset, from there, of the sentinel node that ends the list, as null does.
        end: Option<u64>,
        /// Offset of the number of nodes, from there. While the walk finds fewer, the former nodes still count.
        count: Option<u64>,
    },
    /// To each node of a binary tree, in order. The pointer there leads to the root.
    Tree {
        /// Offset of a node's pointer to the nodes before it.
        left: u64,
        /// Offset of a node's pointer to the nodes behind it.
        right: u64,
        /// Offset of the number of nodes, from there.
        count: u64,
    },
    /// To each value of a B-tree of Rust's standard library, in order. The pointer there leads to the root.
    Btree {
        /// Offset of the tree's height, the number of levels below the root, from there.
        height: u64,
        /// Offset of the number of a node's values (two bytes).
        len: u64,
        /// Offset of the pointers to the nodes below.
        edges: u64,
        /// Maximum number of values in a node.
        room: u64,
        /// Bytes from one value to the next.
        stride: u64,
    },
    /// To each full slot of a hash table (hashbrown, as in Rust's standard library; Abseil). The pointer there leads to
    /// its control bytes.
    Table {
        /// Offset of the number of slots less one, from there.
        mask: u64,
        /// Offset of the pointer to the slots. Without one, the slots lie before the control bytes, in reverse.
        slots: Option<u64>,
        /// Bytes from one slot to the next.
        stride: u64,
    },
    /// To each element of a ring. The pointer there leads to its memory.
    Ring {
        /// Offset of its capacity (eight bytes), from there.
        capacity: u64,
        /// Offset of the index of the first element.
        head: u64,
        /// Offset of the number of elements.
        count: u64,
        /// Bytes from one element to the next.
        stride: u64,
        /// Number of the first element to watch.
        from: u64,
        /// Number behind that of the last element to watch.
        to: u64,
    },
    /// To each element of a deque (libstdc++), whose first iterator is there. An iterator has four pointers: to the
    /// element, to the beginning and the end of its chunk, and to that chunk's pointer.
    Chunks {
        /// Offset of the iterator behind the last element, from there.
        finish: u64,
        /// Offset of the pointer to the chunks' pointers, from there; their number follows it.
        map: u64,
        /// Bytes from one element to the next.
        stride: u64,
        /// Number of the first element to watch.
        from: u64,
        /// Number behind that of the last element to watch.
        to: u64,
    },
    /// To each element behind the pointer there.
    Elements {
        /// Source of the number of elements.
        until: Until,
        /// Bytes from one element to the next.
        stride: u64,
        /// Number of the first element to watch.
        from: u64,
        /// Number behind that of the last element to watch.
        to: u64,
    },
    /// To each of the elements that begin there.
    Times {
        /// Number of elements.
        count: u64,
        /// Bytes from one element to the next.
        stride: u64,
    },
    /// To each element of a text that may be in the object itself (libc++). If it is elsewhere, the pointer to it is
    /// there.
    Short {
        /// Offset of a byte: its lowest bit is set if the text is elsewhere; otherwise half of it is the length of the
        /// text.
        flag: u64,
        /// Offset of the length of a text elsewhere, from there.
        count: u64,
        /// Offset of a text in the object, from there.
        inside: u64,
        /// Bytes from one element to the next.
        stride: u64,
        /// Number of the first element to watch.
        from: u64,
        /// Number behind that of the last element to watch.
        to: u64,
    },
    /// Only while some bytes are not all zero.
    If {
        /// Offset of these bytes, from there.
        at: u64,
        /// Size of the number in bytes.
        size: u64,
    },
    /// Only while a number is in (or outside) a range.
    Is {
        /// Offset of the number, from there.
        at: u64,
        /// Size of the number in bytes.
        size: u64,
        /// First value of the range.
        first: u64,
        /// Number of values in the range, which may wrap.
        count: u64,
        /// True if the number must be in the range, false if outside.
        inside: bool,
    },
    /// To each frame of the function that begins there.
    Frames,
    /// To each thread's pointer to its own data.
    Threads,
}

/// Source of the number of elements, as an offset from the pointer to the first one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Until {
    /// Offset of a pointer behind the last element.
    Pointer(u64),
    /// Offset and size in bytes of a number.
    Count(u64, u64),
}

/// A base address, and the steps from there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Path {
    pub(super) base: u64,
    /// Each step, with the offset that it adds to the address that it reaches.
    pub(super) steps: Vec<(Step, u64)>,
    pub(super) most: Option<u64>,
    /// The current frames, or the threads' pointers.
    pub(super) frames: Vec<u64>,
}

impl Step {
    /// Whether it may lead to many places.
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
    /// Reason why this path cannot be followed.
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

    /// The same path with at most this many places.
    #[must_use]
    pub fn with_most(self, most: u64) -> Path {
        let most = Some(most.clamp(1, MOST_OF_ALL));
        Path { most, ..self }
    }

    /// Address at which the first step begins.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Whether it may lead to many places.
    pub fn is_many(&self) -> bool {
        self.steps.iter().any(|(step, _)| step.is_many())
    }

    /// Address of the function whose frames the path begins with, if it does.
    pub fn function(&self) -> Option<u64> {
        let frames = matches!(self.steps.first(), Some((Step::Frames, _)));
        frames.then_some(self.base)
    }

    /// Whether it begins with each thread's own data.
    pub fn is_of_threads(&self) -> bool {
        matches!(self.steps.first(), Some((Step::Threads, _)))
    }

    /// Sets the pointers of the current threads.
    pub fn set_threads(&mut self, pointers: &[u64]) {
        self.frames.clear();
        self.frames.extend_from_slice(pointers);
    }

    /// Records a new frame: the function has been entered.
    pub fn begin_frame(&mut self, at: u64) {
        self.frames.push(at);
    }

    /// Removes a frame that the function has left. Returns false if there was no such frame.
    pub fn end_frame(&mut self, at: u64) -> bool {
        let found = self.frames.iter().rposition(|frame| *frame == at);
        found.map(|n| self.frames.remove(n)).is_some()
    }

    /// Maximum number of places.
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

    /// Returns `None` if the word is not a path.
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

/// The arguments behind a step's name.
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
        ("table", &[mask, stride, offset]) => {
            let slots = None;
            (
                Step::Table {
                    mask,
                    slots,
                    stride,
                },
                offset,
            )
        }
        ("slots", &[mask, slots, stride, offset]) => {
            let slots = Some(slots);
            (
                Step::Table {
                    mask,
                    slots,
                    stride,
                },
                offset,
            )
        }
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
                Step::Table {
                    mask,
                    slots,
                    stride,
                } => match slots {
                    None => write!(f, "@table{},{offset}", numbers(&[mask, stride])),
                    Some(slots) => write!(f, "@slots{},{offset}", numbers(&[mask, slots, stride])),
                },
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
