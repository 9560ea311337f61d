//! The backend of guarded pages that the user selects: `--backend`.
#![forbid(unsafe_code)]

use clap::ValueEnum;
use ulpf_lib::device::{self, Device, Unusable};
use ulpf_lib::guard;

/// Backend of guarded pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// The kernel module where it is loaded and may be used, else signals
    #[default]
    Auto,
    /// Page protection and SIGSEGV: works everywhere
    Signal,
    /// The kernel module (/dev/ulpf), or nothing
    Kernel,
}

/// Features of the kernel module that the stub needs.
const NEEDED: u64 = guard::FEATURES | device::FEATURE_SIGSTACK | device::FEATURE_EFAULT;

impl Backend {
    /// Parses a word of a command line that clap does not parse.
    pub fn parse(name: &str) -> Result<Backend, String> {
        match name {
            "debug-registers" => Err(
                "Debug registers are a placement, not a backend. Use --placement debug-register.\n"
                    .into(),
            ),
            "pkeys" => Err(
                "The backend \"pkeys\" is not part of this version. Use auto, signal or kernel.\n"
                    .into(),
            ),
            "device" => Ok(Backend::Kernel),
            _ => <Backend as ValueEnum>::from_str(name, false).map_err(|_| {
                format!("There is no backend \"{name}\". Use auto, signal or kernel; `ulpf server` and `ulpf gdb` have sim, gem5 and rsp:ADDR, too.\n")
            }),
        }
    }

    /// Whether the backend is available; the error gives the reason. A program whose user has fewer rights than we may
    /// still be refused at its first watch.
    pub fn check(self) -> Result<(), String> {
        match self {
            Backend::Auto | Backend::Signal => Ok(()),
            Backend::Kernel => usable().map_err(|u| {
                format!(
                    "The backend \"kernel\" cannot be used: {}; {}.",
                    u.why(),
                    u.what_to_do()
                )
            }),
        }
    }
}

/// Whether this user can use the module.
pub fn usable() -> Result<(), Unusable> {
    Device::open(NEEDED).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words() {
        assert_eq!(Backend::parse("auto"), Ok(Backend::Auto));
        assert_eq!(Backend::parse("signal"), Ok(Backend::Signal));
        assert_eq!(Backend::parse("kernel"), Ok(Backend::Kernel));
        for none in ["", "Kernel", "gem5"] {
            assert!(Backend::parse(none).is_err(), "{none}");
        }
    }
}
