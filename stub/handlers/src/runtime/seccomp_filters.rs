//! The seccomp filters that each thread of the program has installed (`crate::syscalls::seccomp` applies them).

use core::mem::offset_of;
use core::ptr::null_mut;
use core::slice;
use core::sync::atomic::{AtomicPtr, Ordering::*};

use ulpf_lib::arena;
use ulpf_lib::seccomp::{Instruction, Kept, PREFIX};

/// A filter, followed by its instructions. It is never freed: other threads may have it, too.
#[repr(C)]
pub struct Filter {
    /// The filter that was installed before.
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
    /// A new filter, not yet installed, with room for its instructions.
    pub fn with_len(len: usize) -> Option<&'static mut Filter> {
        let filter = arena::map_anonymous(Self::size(len)).cast::<Filter>();
        // SAFETY: just mapped, with room for the filter and its instructions, for which zeros are valid.
        let filter = unsafe { filter.as_mut() }?;
        filter.len = len;
        Some(filter)
    }

    /// Unmaps a filter that is not installed.
    pub fn unmap(filter: &'static mut Filter) {
        let size = Self::size(filter.len);
        arena::unmap_anonymous((&raw mut *filter).cast(), size);
    }

    /// It represents the strict mode, in which SIGKILL ends the thread.
    pub fn is_strict(&self) -> bool {
        self.nature & Kept::STRICT != 0
    }

    /// It has a listener.
    pub fn is_heard(&self) -> bool {
        self.nature & Kept::HEARD != 0
    }

    pub fn set_nature(&mut self, nature: u64) {
        self.nature = nature;
    }

    fn size(len: usize) -> usize {
        size_of::<Filter>() + (PREFIX + len) * size_of::<Instruction>()
    }

    /// All instructions, as the kernel has them.
    pub fn all(&self) -> &[Instruction] {
        // SAFETY: `with_len` has made room for so many.
        unsafe { slice::from_raw_parts((self as *const Filter).add(1).cast(), PREFIX + self.len) }
    }

    /// The program's own instructions.
    pub fn instructions(&self) -> &[Instruction] {
        self.all().get(PREFIX..).unwrap_or(&[])
    }

    /// The instructions before the program's own ones, and these.
    pub fn parts_mut(&mut self) -> (&mut [Instruction], &mut [Instruction]) {
        let first = (self as *mut Filter).wrapping_add(1).cast();
        // SAFETY: as in `all`.
        unsafe { slice::from_raw_parts_mut(first, PREFIX + self.len) }.split_at_mut(PREFIX)
    }
}

/// The filters of a thread. It writes them itself; another thread writes them to give it its own filters
/// (SECCOMP_FILTER_FLAG_TSYNC).
pub struct Filters(AtomicPtr<Filter>);

impl Filters {
    pub fn is_empty(&self) -> bool {
        self.0.load(Relaxed).is_null()
    }

    pub fn clear(&self) {
        self.0.store(null_mut(), Release);
    }

    /// Address of the newest filter.
    pub fn address(&self) -> u64 {
        self.0.load(Acquire) as u64
    }

    /// All filters, the newest first.
    pub fn each(&self) -> impl Iterator<Item = &'static Filter> + use<> {
        // SAFETY: filters that are installed are never freed.
        let first = unsafe { self.0.load(Acquire).as_ref() };
        // SAFETY: as above.
        core::iter::successors(first, |filter| unsafe { filter.parent.as_ref() })
    }

    /// Gives the thread one more filter, which is not installed yet.
    pub fn push(&self, filter: &'static mut Filter) {
        filter.parent = self.0.load(Relaxed);
        self.0.store(filter, Release);
    }

    pub fn become_those_of(&self, other: &Filters) {
        self.0.store(other.0.load(Acquire), Release);
    }
}
