//! Where watches live, as far as the user decides: `--placement`. The stub is told when it is loaded.
#![forbid(unsafe_code)]

use clap::ValueEnum;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use ulpf_lib::boot::{BOOT_NO_PATCH, BOOT_PLACE_GUARD, BOOT_PLACE_REGISTER};

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

/// One command serves one user's wish, in every program and image that it follows.
static FLAGS: AtomicU32 = AtomicU32::new(0);

impl Placement {
    pub fn parse(word: &str) -> Result<Placement, String> {
        <Placement as ValueEnum>::from_str(word, false).map_err(|_| {
            format!("There is no placement \"{word}\". Use auto, guard or debug-register.\n")
        })
    }

    /// For all programs from now on.
    pub fn choose(self) {
        let flags = match self {
            Placement::Auto => 0,
            Placement::Guard => BOOT_PLACE_GUARD,
            Placement::DebugRegister => BOOT_PLACE_REGISTER,
        };
        FLAGS.fetch_or(flags, Relaxed);
    }
}

/// The program's code stays as it is, in all programs from now on (`--no-patch`).
pub fn no_patch() {
    FLAGS.fetch_or(BOOT_NO_PATCH, Relaxed);
}

/// `BOOT_*` bits, in all programs from now on.
pub fn add_flags(flags: u32) {
    FLAGS.fetch_or(flags, Relaxed);
}

/// What the stub is to know of it (`BootArgs::flags`).
pub fn boot_flags() -> u32 {
    FLAGS.load(Relaxed)
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
