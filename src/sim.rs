//! `ulpf sim`: runs `ulpf-sim`, the simulated hardware. It is a program of its own because it links Unicorn,
//! which is GPL-2.0.
#![forbid(unsafe_code)]

use crate::programs::is_executable;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

const NAME: &str = "ulpf-sim";

/// Beside this command (there `make sim` leaves it as well) or in the search path.
pub fn program() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    let folder = own.parent()?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::iter::once(folder.to_owned())
        .chain(std::env::split_paths(&path))
        .map(|folder| folder.join(NAME))
        .find(|file| is_executable(file))
}

pub fn sim(words: Vec<OsString>) -> i32 {
    let Some(program) = program() else {
        eprintln!(
            "ulpf sim runs `{NAME}`, the simulated hardware, which is not here: neither beside `ulpf` nor in PATH.\n\
             It is a program of its own, because the Unicorn Engine that it links is GPL-2.0. In ulpf's source tree\n\
             `make sim` builds it (it needs cmake and libclang-dev), and `make install` installs what is built."
        );
        return 125;
    };
    let error = Command::new(&program).args(words).exec();
    eprintln!("ulpf sim cannot run {}: {error}.", program.display());
    126
}
