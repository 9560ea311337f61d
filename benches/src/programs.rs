//! The programs that are measured: C, inside this command, compiled when they are needed.
//!
//! Base and watched are the same file. The head of each file in `benches/programs` describes its program.

use super::{loops, machine};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs, io};

macro_rules! source {
    ($name:literal) => {
        ($name, include_str!(concat!("../programs/", $name)))
    };
}

const SOURCES: &[(&str, &str)] = &[
    source!("measure.h"),
    source!("sweep.c"),
    source!("stores.c"),
    source!("mates.c"),
    source!("pointers.c"),
    source!("threads.c"),
    source!("blocks.c"),
    source!("untouched.c"),
    source!("syscalls.c"),
    source!("empty_handler.c"),
    source!("open_step_close.c"),
    source!("quantum.c"),
    source!("lbm.c"),
    source!("plugin.py"),
    (
        "hotlocal.c",
        include_str!("../../tests/programs/hotlocal.c"),
    ),
];

/// A folder of our own, gone when we are.
#[derive(Debug)]
pub struct Programs {
    pub folder: PathBuf,
}

impl Programs {
    pub fn new() -> Result<Programs> {
        let made = tempfile::Builder::new().prefix("ulpf-bench-").tempdir();
        let made =
            made.with_context(|| format!("cannot make a folder in {}", env::temp_dir().display()))?;
        let programs = Programs {
            folder: made.keep(),
        };
        for (name, text) in SOURCES {
            fs::write(programs.folder.join(name), text)
                .with_context(|| format!("cannot write to {}", programs.folder.display()))?;
        }
        Ok(programs)
    }

    /// An optimised program.
    pub fn get(&self, name: &str) -> Result<PathBuf> {
        self.built(name, name, &["-O2"])
    }

    /// The sweep, at `-O2`, or at `-O0` as in the thesis's table 4.6. Its loop is verified ([`loops::check`]).
    pub fn sweep(&self, optimise: &str) -> Result<PathBuf> {
        // GCC 13 and later unroll small loops at -O2, too.
        let flags = [optimise, "-fno-unroll-loops"];
        let program = self.built("sweep", &format!("sweep{optimise}"), &flags)?;
        loops::check(&program, "fill").context(
            "the compiler has not made one store instruction a byte; nothing is measured",
        )?;
        Ok(program)
    }

    pub fn built(&self, source: &str, name: &str, flags: &[&str]) -> Result<PathBuf> {
        let program = self.folder.join(name);
        if program.exists() {
            return Ok(program);
        }
        let cc = env::var("CC").unwrap_or_else(|_| "cc".into());
        let libraries: &[&str] = match source {
            "quantum" => &["-fopenmp", "-lquantum", "-lm"],
            _ => &["-pthread"],
        };
        let said = Command::new(&cc)
            .current_dir(&self.folder)
            .arg("-g")
            .args(flags)
            .args(["-o", name, &format!("{source}.c")])
            .args(libraries)
            .stdin(Stdio::null())
            .output();
        match said {
            Err(e) if e.kind() == io::ErrorKind::NotFound => bail!(
                "there is no C compiler `{cc}`, and the programs that are measured are C: install one (apt install gcc libc6-dev), or name it in CC"
            ),
            Err(e) => Err(e).with_context(|| format!("cannot run {cc}")),
            Ok(said) if !said.status.success() => bail!(
                "{cc} cannot build {source}.c:\n{}",
                String::from_utf8_lossy(&said.stderr).trim()
            ),
            Ok(_) => Ok(program),
        }
    }

    /// A path in the folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Why a program of this machine's cannot be measured, if so.
pub fn missing(program: &str, package: &str) -> Option<String> {
    let there = machine::find(program).is_some();
    (!there).then(|| format!("{program} is not installed (apt install {package})"))
}

/// Is there libquantum to compile with?
pub fn has_quantum() -> bool {
    Path::new("/usr/include/quantum.h").exists()
}
