//! Where a watch is to live, as commands and answers say it.

use core::fmt;

/// Where a watch is to live.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum Placement {
    /// Where it costs least.
    #[default]
    Auto,
    /// The page is guarded.
    Guard,
    /// A debug register.
    Register,
}

impl Placement {
    /// As commands say it.
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
