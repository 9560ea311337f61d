//! Stacks that were walked before, each with what it depends on. A thread that has the same stack again gets the same
//! callers without a walk.
//!
//! The result of a walk depends on the thread's place in the code, its stack pointer, sometimes rbp, and the words that
//! the walk has read. These words are the return addresses, and rbp of callers with a frame pointer. If all of them are
//! the same, so are the callers.

use alloc::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use alloc::boxed::Box;

/// Number of stacks that are remembered.
const STACKS: usize = 256;
/// Stacks with more callers are not remembered.
pub const MOST_CALLERS: usize = 8;
/// Stacks whose walk depended on more words are not remembered either.
const MOST_WORDS: usize = 12;

/// A word of the stack: its distance from rsp, and its value.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Word {
    pub away: u64,
    pub value: u64,
}

/// Where a stack begins.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Top {
    pub ip: u64,
    pub sp: u64,
    pub thread: u64,
}

/// A stack. (All zero: none.)
#[repr(C, align(64))]
#[derive(Clone, Copy, Default, Debug)]
pub struct Stack {
    pub top: Top,
    /// Nonzero if it depends on rbp, and the value of rbp then.
    pub by_bp: u64,
    pub bp: u64,
    /// Number under which these callers were noted.
    pub number: u64,
    /// Bytes from rsp to the end of the last word.
    pub span: u64,
    words: u64,
    callers: u64,
    list: [u64; MOST_CALLERS],
    read: [Word; MOST_WORDS],
}

impl Stack {
    pub fn begin(top: Top) -> Stack {
        Stack {
            top,
            ..Stack::default()
        }
    }

    /// Notes that the walk has read this word. `false`: there is no room.
    pub fn depends_on(&mut self, word: Word) -> bool {
        let slot = self.read.get_mut(self.words as usize);
        self.words += 1;
        self.span = self.span.max(word.away + 8);
        slot.map(|slot| *slot = word).is_some()
    }

    /// Sets its callers. `false`: there are too many.
    pub fn has(&mut self, callers: &[u64]) -> bool {
        self.callers = callers.len() as u64;
        let to = self.list.get_mut(..callers.len());
        to.map(|to| to.copy_from_slice(callers)).is_some()
    }

    pub fn words(&self) -> &[Word] {
        self.read.get(..self.words as usize).unwrap_or_default()
    }

    pub fn callers(&self) -> &[u64] {
        self.list.get(..self.callers as usize).unwrap_or_default()
    }
}

pub struct Stacks {
    all: Box<[Stack; STACKS]>,
    /// Keys that were asked for last: a stack that is met only once is not worth its memory.
    met: [u64; STACKS],
    /// Generation of the tables that the stacks come from.
    generation: u64,
}

impl Default for Stacks {
    fn default() -> Stacks {
        Stacks::new()
    }
}

impl Stacks {
    pub fn new() -> Stacks {
        let layout = Layout::new::<[Stack; STACKS]>();
        // SAFETY: integers. (Zeroed memory costs nothing to make, and no page until it is used.)
        let all = unsafe {
            let at = alloc_zeroed(layout) as *mut [Stack; STACKS];
            if at.is_null() {
                handle_alloc_error(layout);
            }
            Box::from_raw(at)
        };
        Stacks {
            all,
            met: [0; STACKS],
            generation: 0,
        }
    }

    /// As [`Rows::settle`](crate::rows::Rows::settle).
    pub fn settle(&mut self, generation: u64) {
        if self.generation != generation {
            self.generation = generation;
            self.all.fill(Stack::default());
        }
    }

    /// The slot for this place; `key` is made of its top and some of its words.
    #[inline]
    pub fn slot(&mut self, key: u64) -> Option<&mut Stack> {
        self.all.get_mut(number(key))
    }

    /// Returns whether it is the second time in a row that this key comes to its place.
    pub fn met(&mut self, key: u64) -> bool {
        let slot = self.met.get_mut(number(key));
        slot.is_some_and(|slot| core::mem::replace(slot, key) == key)
    }
}

fn number(key: u64) -> usize {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize % STACKS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_there_is_room_for() {
        let mut stack = Stack::begin(Top::default());
        for away in 0..MOST_WORDS as u64 {
            assert!(stack.depends_on(Word { away, value: 1 }));
        }
        assert_eq!(stack.words().len(), MOST_WORDS);
        assert_eq!(stack.span, MOST_WORDS as u64 - 1 + 8);
        assert!(!stack.depends_on(Word::default()));
        assert!(stack.has(&[1; MOST_CALLERS]));
        assert_eq!(stack.callers(), [1; MOST_CALLERS]);
        assert!(!stack.has(&[1; MOST_CALLERS + 1]));
        assert!(stack.callers().is_empty());
    }

    #[test]
    fn forgets_with_the_tables() {
        let top = Top {
            ip: 1,
            sp: 2,
            thread: 3,
        };
        let mut stacks = Stacks::new();
        stacks.settle(1);
        *stacks.slot(7).unwrap() = Stack::begin(top);
        stacks.settle(1);
        assert_eq!(stacks.slot(7).unwrap().top, top);
        assert_eq!([stacks.met(7), stacks.met(7)], [false, true]);
        stacks.settle(2);
        assert_eq!(stacks.slot(7).unwrap().top, Top::default());
    }
}
