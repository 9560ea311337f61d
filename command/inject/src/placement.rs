//! The placement of watches that the user selects: `--placement`.
#![forbid(unsafe_code)]

use clap::ValueEnum;

/// Placement of watches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Placement {
    /// Guarded pages; debug registers where they cost less
    #[default]
    Auto,
    /// Guarded pages only
    Guard,
    /// Debug registers only: up to four watches of 1, 2, 4 or 8 aligned bytes
    DebugRegister,
}

impl Placement {
    /// Parses a word of a command line that clap does not parse.
    ///
    /// # Errors
    /// Text for the user.
    pub fn parse(word: &str) -> Result<Placement, String> {
        <Placement as ValueEnum>::from_str(word, false).map_err(|_| {
            format!("There is no placement \"{word}\". Use auto, guard or debug-register.\n")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words() {
        assert_eq!(Placement::parse("auto"), Ok(Placement::Auto));
        assert_eq!(Placement::parse("guard"), Ok(Placement::Guard));
        assert_eq!(
            Placement::parse("debug-register"),
            Ok(Placement::DebugRegister)
        );
        assert!(Placement::parse("register").is_err());
    }
}
