//! Functions of a program that a check of its heap has to know by address, because the names in the program's dynamic
//! symbols do not tell them.

use core::fmt;

use crate::number::number;

/// Kind of such a function.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Does {
    /// As the C library's function of that name; the same holds for all down to `UsableSize`.
    Malloc,
    /// See above.
    Calloc,
    /// See above.
    Realloc,
    /// See above.
    Reallocarray,
    /// See above.
    Free,
    /// See above; also aligned_alloc.
    Memalign,
    /// See above.
    PosixMemalign,
    /// See above.
    Valloc,
    /// See above.
    Pvalloc,
    /// See above.
    UsableSize,
    /// `operator delete`, if it calls free.
    Delete,
    /// `operator delete[]`, if it calls free.
    DeleteArray,
    /// `operator new`, which calls malloc.
    New,
    /// `operator new[]`, which calls malloc as well.
    NewArray,
    /// Copies: it reads exactly the requested bytes.
    Copies,
    /// Reads strings by words and vectors, which may over-read.
    ReadsStrings,
    /// Code without known names, part of which may read strings so.
    MayReadStrings,
    /// Not a function: the unwind table (`.eh_frame`) of a file that has no header for it.
    UnwindTable,
    /// Returns the address of the calling thread's errno.
    ErrnoLocation,
}

impl Does {
    /// All kinds, each with its word.
    pub const ALL: [(&'static str, Does); 19] = [
        ("malloc", Does::Malloc),
        ("calloc", Does::Calloc),
        ("realloc", Does::Realloc),
        ("reallocarray", Does::Reallocarray),
        ("free", Does::Free),
        ("memalign", Does::Memalign),
        ("posix_memalign", Does::PosixMemalign),
        ("valloc", Does::Valloc),
        ("pvalloc", Does::Pvalloc),
        ("malloc_usable_size", Does::UsableSize),
        ("delete", Does::Delete),
        ("delete[]", Does::DeleteArray),
        ("new", Does::New),
        ("new[]", Does::NewArray),
        ("copies", Does::Copies),
        ("reads-strings", Does::ReadsStrings),
        ("may-read-strings", Does::MayReadStrings),
        ("unwind-table", Does::UnwindTable),
        ("errno-location", Does::ErrnoLocation),
    ];

    /// Its word.
    #[must_use]
    pub fn word(self) -> &'static str {
        let mut all = Does::ALL.into_iter();
        all.find(|(_, does)| *does == self)
            .map_or("", |(word, _)| word)
    }

    /// Whether it allocates or frees.
    #[must_use]
    pub fn is_allocators(self) -> bool {
        (self as u8) <= Does::UsableSize as u8
    }
}

/// A function and its address range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeapFunction {
    /// See [`Does`].
    pub does: Does,
    /// Its first byte.
    pub start: u64,
    /// Bytes up to its end.
    pub len: u64,
}

impl fmt::Display for HeapFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:#x} {}", self.does.word(), self.start, self.len)
    }
}

impl HeapFunction {
    /// Parses three words; returns `None` if they name no function.
    pub fn take<'a>(word: &str, rest: &mut impl Iterator<Item = &'a str>) -> Option<HeapFunction> {
        let (_, does) = Does::ALL.into_iter().find(|(known, _)| *known == word)?;
        let (start, len) = (number(rest.next())?, number(rest.next())?);
        start.checked_add(len)?;
        Some(HeapFunction { does, start, len })
    }
}
