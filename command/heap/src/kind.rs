//! The kinds of errors, with their names in each form of output.

use ulpf_lib::ring::findings::Wrong;

pub struct Kind {
    wrong: Wrong,
    /// Our word for it, in JSON and suppressions.
    pub word: &'static str,
    /// Memcheck's name, in XML: of an access, that of a read.
    pub memcheck: &'static str,
    /// Level and description of its rule in SARIF.
    pub level: &'static str,
    pub rule: &'static str,
}

const KINDS: [Kind; Wrong::ALL.len()] = [
    Kind {
        wrong: Wrong::Outside,
        word: "outside",
        memcheck: "InvalidRead",
        level: "error",
        rule: "An access before, behind or between blocks of the heap",
    },
    Kind {
        wrong: Wrong::Freed,
        word: "freed",
        memcheck: "InvalidRead",
        level: "error",
        rule: "An access to a block that has been freed",
    },
    Kind {
        wrong: Wrong::Twice,
        word: "double-free",
        memcheck: "InvalidFree",
        level: "error",
        rule: "A block is freed that was freed before",
    },
    Kind {
        wrong: Wrong::NoBlock,
        word: "invalid-free",
        memcheck: "InvalidFree",
        level: "error",
        rule: "What is freed is not the beginning of a block",
    },
    Kind {
        wrong: Wrong::Mismatch,
        word: "mismatched-free",
        memcheck: "MismatchedFree",
        level: "error",
        rule: "A block is freed by another kind of function than has allocated it",
    },
    Kind {
        wrong: Wrong::Overlap,
        word: "overlap",
        memcheck: "Overlap",
        level: "error",
        rule: "A function copies between places that overlap",
    },
    Kind {
        wrong: Wrong::Poisoned,
        word: "poisoned",
        memcheck: "InvalidRead",
        level: "error",
        rule: "An access to memory that the program itself has forbidden to touch",
    },
    Kind {
        wrong: Wrong::Far,
        word: "far",
        memcheck: "InvalidRead",
        level: "error",
        rule: "An access by a pointer to one block of the heap that lies in another one",
    },
    Kind {
        wrong: Wrong::Lost,
        word: "lost",
        memcheck: "Leak_DefinitelyLost",
        level: "warning",
        rule: "Nothing points to a block any more, which was not freed",
    },
    Kind {
        wrong: Wrong::LostWith,
        word: "indirectly-lost",
        memcheck: "Leak_IndirectlyLost",
        level: "warning",
        rule: "Only lost blocks point to a block, which was not freed",
    },
    Kind {
        wrong: Wrong::PerhapsLost,
        word: "possibly-lost",
        memcheck: "Leak_PossiblyLost",
        level: "warning",
        rule: "Only the inside of a block is pointed to, which was not freed",
    },
    Kind {
        wrong: Wrong::Reachable,
        word: "reachable",
        memcheck: "Leak_StillReachable",
        level: "note",
        rule: "A block was not freed, and could have been",
    },
];

/// The row of a kind. (Each kind has one, as the test below shows.)
pub fn kind(wrong: Wrong) -> &'static Kind {
    let row = KINDS.iter().find(|kind| kind.wrong == wrong);
    row.unwrap_or(&KINDS[0])
}

/// Our word for a kind.
pub fn word(wrong: Wrong) -> &'static str {
    kind(wrong).word
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_a_row() {
        assert_eq!(KINDS.map(|kind| kind.wrong), Wrong::ALL);
    }
}
