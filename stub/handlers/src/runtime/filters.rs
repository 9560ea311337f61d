//! The seccomp filters that the program has installed, for each thread (what is done with them: `crate::syscalls::seccomp`).

use core::mem::offset_of;
use core::ptr::null_mut;
use core::slice;
use core::sync::atomic::{AtomicPtr, Ordering::*};

use ulpf_lib::arena;
use ulpf_lib::seccomp::{Instruction, Kept, PREFIX};

/// A filter, with its instructions behind it. For good: other threads may have it, too.
#[repr(C)]
pub struct Filter {
    /// The one that was installed before.
    parent: *const Filter,
    /// The program's own instructions.
    len: usize,
    /// As in [`Kept`].
    nature: u64,
}

// The command reads them.
const _: () = assert!(
    size_of::<Filter>() == size_of::<Kept>()
        && offset_of!(Filter, parent) == offset_of!(Kept, parent)
        && offset_of!(Filter, len) == offset_of!(Kept, len)
        && offset_of!(Filter, nature) == offset_of!(Kept, nature)
);

impl Filter {
    /// One that nobody has yet.
    pub fn with_room(len: usize) -> Option<&'static mut Filter> {
        let filter = arena::map_anonymous(Self::size(len)).cast::<Filter>();
        // SAFETY: just mapped, with room for the filter and its instructions, for which zeros are valid.
        let filter = unsafe { filter.as_mut() }?;
        filter.len = len;
        Some(filter)
    }

    /// Unmaps one that nobody has.
    pub fn unmap(filter: &'static mut Filter) {
        let size = Self::size(filter.len);
        arena::unmap_anonymous((&raw mut *filter).cast(), size);
    }

    /// It stands for the strict mode: whom it kills, SIGKILL does.
    pub fn is_strict(&self) -> bool {
        self.nature & Kept::STRICT != 0
    }

    /// It was made with a listener.
    pub fn is_heard(&self) -> bool {
        self.nature & Kept::HEARD != 0
    }

    pub fn set_nature(&mut self, nature: u64) {
        self.nature = nature;
    }

    fn size(len: usize) -> usize {
        size_of::<Filter>() + (PREFIX + len) * size_of::<Instruction>()
    }

    /// What the kernel has.
    pub fn all(&self) -> &[Instruction] {
        // SAFETY: `with_room` has made room for so many.
        unsafe { slice::from_raw_parts((self as *const Filter).add(1).cast(), PREFIX + self.len) }
    }

    /// The program's own instructions.
    pub fn instructions(&self) -> &[Instruction] {
        self.all().get(PREFIX..).unwrap_or(&[])
    }

    /// What stands before the program's own instructions, and these.
    pub fn parts_mut(&mut self) -> (&mut [Instruction], &mut [Instruction]) {
        let first = (self as *mut Filter).wrapping_add(1).cast();
        // SAFETY: as in `all`.
        unsafe { slice::from_raw_parts_mut(first, PREFIX + self.len) }.split_at_mut(PREFIX)
    }
}

/// Those of a thread: written by itself, and by another one that gives it its own (SECCOMP_FILTER_FLAG_TSYNC).
pub struct Filters(AtomicPtr<Filter>);

impl Filters {
    pub fn is_empty(&self) -> bool {
        self.0.load(Relaxed).is_null()
    }

    pub fn clear(&self) {
        self.0.store(null_mut(), Release);
    }

    /// Where the newest is.
    pub fn address(&self) -> u64 {
        self.0.load(Acquire) as u64
    }

    /// The newest first.
    pub fn each(&self) -> impl Iterator<Item = &'static Filter> + use<> {
        // SAFETY: filters that somebody has are never freed.
        let first = unsafe { self.0.load(Acquire).as_ref() };
        // SAFETY: as above.
        core::iter::successors(first, |filter| unsafe { filter.parent.as_ref() })
    }

    /// Gives the thread one more, that nobody has yet.
    pub fn push(&self, filter: &'static mut Filter) {
        filter.parent = self.0.load(Relaxed);
        self.0.store(filter, Release);
    }

    pub fn become_those_of(&self, other: &Filters) {
        self.0.store(other.0.load(Acquire), Release);
    }
}
