//! Functions of a program that a check of its heap has to know, by where they are: those that names in the program's
//! dynamic symbols do not tell of.

use core::fmt;

use crate::number::number;

/// What one of them does.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Does {
    /// As the C library's function of that name, as all down to `UsableSize`.
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
    /// `operator delete`, if it goes on as free.
    Delete,
    /// `operator delete[]`, if it goes on as free.
    DeleteArray,
    /// `operator new`, which calls malloc.
    New,
    /// `operator new[]`, which calls it, too.
    NewArray,
    /// Copies: it reads what it is asked to, and no byte more.
    Copies,
    /// Reads strings, by words and vectors that may be longer.
    ReadsStrings,
    /// Some of it may do so: code of which nobody knows the names.
    MayReadStrings,
    /// No function: the unwind table (`.eh_frame`) of a file that has no header for it.
    UnwindTable,
    /// Returns where the calling thread's errno is.
    ErrnoLocation,
}

impl Does {
    /// All of them, by the words for them.
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

    /// Is it one that allocates or frees?
    #[must_use]
    pub fn is_allocators(self) -> bool {
        (self as u8) <= Does::UsableSize as u8
    }
}

/// A function, and where it is.
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
    /// From three words; `None`: they are none.
    pub fn take<'a>(word: &str, rest: &mut impl Iterator<Item = &'a str>) -> Option<HeapFunction> {
        let (_, does) = Does::ALL.into_iter().find(|(known, _)| *known == word)?;
        let (start, len) = (number(rest.next())?, number(rest.next())?);
        start.checked_add(len)?;
        Some(HeapFunction { does, start, len })
    }
}
