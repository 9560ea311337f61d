//! One place where code is changed, and the places of one kind.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use core::ops::Range;

/// An edit of code.
pub trait Edit {
    /// Address of the first changed byte.
    fn start(&self) -> u64;
    /// End of the code that must not change while the edit is there.
    fn end(&self) -> u64;
    /// Bytes of the program that are replaced.
    fn original(&self) -> &[u8];
    /// Bytes in their place.
    fn ours(&self) -> &[u8];
    /// Returns whether they are in memory.
    fn is_in_place(&self) -> bool {
        true
    }
    /// Returns whether the edit needs a byte of `[start, end)` unchanged.
    fn meets(&self, start: u64, end: u64) -> bool {
        self.start() < end && start < self.end()
    }
}

/// The edits of one kind, by their starts.
pub struct List<T>(BTreeMap<u64, Box<T>>);

impl<T> Default for List<T> {
    fn default() -> List<T> {
        List::new()
    }
}

impl<T> List<T> {
    pub const fn new() -> List<T> {
        List(BTreeMap::new())
    }
}

impl<T: Edit> List<T> {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.0.values().map(|edit| &**edit)
    }
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.values_mut().map(|edit| &mut **edit)
    }
    /// The edit that begins at exactly `start`.
    pub fn at(&self, start: u64) -> Option<&T> {
        self.0.get(&start).map(|edit| &**edit)
    }
    pub fn at_mut(&mut self, start: u64) -> Option<&mut T> {
        self.0.get_mut(&start).map(|edit| &mut **edit)
    }
    /// The last edit that begins before `end`.
    pub fn before(&self, end: u64) -> Option<&T> {
        self.within(0..end).next_back()
    }
    /// The edits that begin in `starts`.
    pub fn within(&self, starts: Range<u64>) -> impl DoubleEndedIterator<Item = &T> {
        let starts = starts.start..starts.end.max(starts.start);
        self.0.range(starts).map(|(_, edit)| &**edit)
    }
    pub fn within_mut(&mut self, starts: Range<u64>) -> impl Iterator<Item = &mut T> {
        let starts = starts.start..starts.end.max(starts.start);
        self.0.range_mut(starts).map(|(_, edit)| &mut **edit)
    }
    /// The edits that need a byte of `[start, end)`, descending.
    pub fn meeting(&self, start: u64, end: u64) -> impl Iterator<Item = &T> {
        let before = self.within(0..end).rev();
        before.take_while(move |edit| start < edit.end())
    }
    pub fn touches(&self, start: u64, end: u64) -> bool {
        self.meeting(start, end).next().is_some()
    }
    /// Adds an edit, the only one of its kind at its start.
    pub fn insert(&mut self, edit: T) {
        self.0.insert(edit.start(), Box::new(edit));
    }
    /// The edit at exactly `start`, made by `new` if it is missing.
    pub fn get_or_insert(&mut self, start: u64, new: impl FnOnce() -> T) -> &mut T {
        self.0.entry(start).or_insert_with(|| Box::new(new()))
    }
    pub fn remove(&mut self, start: u64) -> Option<Box<T>> {
        self.0.remove(&start)
    }
    /// Takes all of them out.
    pub fn take(&mut self) -> List<T> {
        core::mem::take(self)
    }
}

/// A far jump that stays: the beginning of a function, or of a client request.
pub struct Detour<const LEN: usize> {
    pub at: u64,
    /// Number of its record in the table of its kind (`check/entries.rs`, `check/requests.rs` of the handlers).
    pub number: usize,
    pub original: [u8; LEN],
    pub jump: [u8; LEN],
}

/// Bytes of the jump at the beginning of a function, and of a client request.
pub const FUNCTION_JUMP: usize = 13;
/// See [`FUNCTION_JUMP`].
pub const REQUEST_JUMP: usize = 14;

/// Most bytes that an edit changes.
pub const LONGEST: usize = REQUEST_JUMP;

impl<const LEN: usize> Edit for Detour<LEN> {
    fn start(&self) -> u64 {
        self.at
    }
    fn end(&self) -> u64 {
        self.at + LEN as u64
    }
    fn original(&self) -> &[u8] {
        &self.original
    }
    fn ours(&self) -> &[u8] {
        &self.jump
    }
}
