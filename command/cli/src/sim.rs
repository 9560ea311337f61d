//! `ulpf sim`: runs `ulpf-sim`, the simulated hardware. That is a separate program because it links Unicorn, which is
//! GPL-2.0.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;
use ulpf_host::programs::{SIMULATOR, simulator};

/// Executes `ulpf-sim`; returns only on failure.
pub fn sim(words: Vec<OsString>) -> i32 {
    let Some(program) = simulator() else {
        ulpf_host::say::message!(
            "ulpf sim runs `{SIMULATOR}`, the simulated hardware, which is not here: neither beside `ulpf` nor in PATH.\n\
             It is a program of its own, because the Unicorn Engine that it links is GPL-2.0. In ulpf's source tree\n\
             `make sim` builds it (it needs cmake and libclang-dev), and `make install` installs what is built."
        );
        return 125;
    };
    let error = Command::new(&program).args(words).exec();
    ulpf_host::say::message!("ulpf sim cannot run {}: {error}.", program.display());
    126
}
