//! The user's settings for one program. Its children, and the programs that they execute, inherit them. The stub
//! receives them when it is loaded (`BootArgs::flags`).
#![forbid(unsafe_code)]

use crate::backend::Backend;
use crate::placement::Placement;
use ulpf_lib::boot::{
    BOOT_BACKEND_KERNEL, BOOT_BACKEND_SIGNAL, BOOT_NO_PATCH, BOOT_PLACE_GUARD, BOOT_PLACE_REGISTER,
};

/// Values of `--placement`, `--backend`, `--no-patch` and `--follow-setuid`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    pub placement: Placement,
    pub backend: Backend,
    /// The program's code is not patched (`--no-patch`).
    pub no_patch: bool,
    /// Follow also into programs that gain rights at exec (`--follow-setuid`).
    pub follow_setuid: bool,
}

impl Settings {
    /// Parses the user's words; `None` means the default. The error lists the choices, or says why a backend is not
    /// available.
    pub fn of(
        placement: Option<&str>,
        backend: Option<&str>,
        no_patch: bool,
    ) -> Result<Settings, String> {
        let placement = placement.map_or(Ok(Placement::default()), Placement::parse)?;
        let backend = backend.map_or(Ok(Backend::default()), Backend::parse)?;
        backend.check()?;
        Ok(Settings {
            placement,
            backend,
            no_patch,
            follow_setuid: false,
        })
    }

    /// `BOOT_*` bits.
    pub fn boot_flags(self) -> u32 {
        let placement = match self.placement {
            Placement::Auto => 0,
            Placement::Guard => BOOT_PLACE_GUARD,
            Placement::DebugRegister => BOOT_PLACE_REGISTER,
        };
        let backend = match self.backend {
            Backend::Auto => 0,
            Backend::Signal => BOOT_BACKEND_SIGNAL,
            Backend::Kernel => BOOT_BACKEND_KERNEL,
        };
        let patch = if self.no_patch { BOOT_NO_PATCH } else { 0 };
        placement | backend | patch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags() {
        assert_eq!(Settings::default().boot_flags(), 0);
        let settings = Settings {
            placement: Placement::Guard,
            backend: Backend::Signal,
            no_patch: true,
            ..Settings::default()
        };
        let all = BOOT_PLACE_GUARD | BOOT_BACKEND_SIGNAL | BOOT_NO_PATCH;
        assert_eq!(settings.boot_flags(), all);
    }
}
