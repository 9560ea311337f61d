//! Placement of a watch, in commands and answers.

use core::fmt;

/// Placement of a watch.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum Placement {
    /// The cheaper one.
    #[default]
    Auto,
    /// The page is guarded.
    Guard,
    /// A debug register.
    Register,
}

impl Placement {
    /// Parses the word of a command.
    pub fn parse(word: &str) -> Option<Placement> {
        Some(match word {
            "auto" => Placement::Auto,
            "guard" => Placement::Guard,
            "debug-register" => Placement::Register,
            _ => return None,
        })
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Placement::Auto => "auto",
            Placement::Guard => "guard",
            Placement::Register => "debug-register",
        })
    }
}
