//! What guards are made of, as far as the user decides: `--backend`.
#![forbid(unsafe_code)]

use clap::ValueEnum;
use ulpf_lib::device::{self, Device, Unusable};
use ulpf_lib::guard;

/// What guards are made of.
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

/// What the stub needs the module to be able to do.
const NEEDED: u64 = guard::FEATURES | device::FEATURE_SIGSTACK | device::FEATURE_EFAULT;

impl Backend {
    /// Of a command line that is not clap's.
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
                format!("There is no backend \"{name}\". Use auto, signal or kernel; `ulpf server` and `ulpf gdb` have sim, gem5 and bridge:ADDR, too.\n")
            }),
        }
    }

    /// It can be had here. The error says why it cannot; a program whose user has fewer rights than we may
    /// still be refused it, at its first watch.
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

/// Can the module be used, by this user?
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
