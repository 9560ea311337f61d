//! What the user has decided for one program: it travels with it, into its children and the programs that it
//! executes. The stub is told when it is loaded (`BootArgs::flags`).
#![forbid(unsafe_code)]

use crate::backend::Backend;
use crate::placement::Placement;
use ulpf_lib::boot::{
    BOOT_BACKEND_KERNEL, BOOT_BACKEND_SIGNAL, BOOT_NO_PATCH, BOOT_PLACE_GUARD, BOOT_PLACE_REGISTER,
};

/// What `--placement`, `--backend`, `--no-patch` and `--follow-setuid` say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    pub placement: Placement,
    pub backend: Backend,
    /// The program's code stays as it is (`--no-patch`).
    pub no_patch: bool,
    /// It is followed into what gains rights when it is executed, too (`--follow-setuid`).
    pub follow_setuid: bool,
}

impl Settings {
    /// By the words of the user; none means the default. The error says what there is, or why a backend cannot
    /// be had here.
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
