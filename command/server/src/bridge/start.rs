//! Starts back ends: finds the program, and explains what to do if it is missing.
#![forbid(unsafe_code)]

use super::backend::BackEnd;
use super::gem5;
use super::place::Place;
use super::remote::{Failure, Remote, Started};
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use tokio::process::Command;
use ulpf_host::foreign::files;
use ulpf_host::listen::socket_dir::SocketDir;
use ulpf_host::programs::locate;

fn simulator() -> Result<PathBuf, String> {
    ulpf_host::programs::simulator().ok_or_else(|| "The backend \"sim\" needs ulpf-sim, the simulated hardware, which is not here: neither beside `ulpf` nor in PATH. It is a program of its own (GPL-2.0-or-later, it links the Unicorn Engine): `make sim` in ulpf's source tree builds it.".into())
}

/// Starts a back end. The error is text for the user.
pub async fn start(
    backend: &BackEnd,
    program: Option<&(OsString, Vec<OsString>)>,
    own_group: bool,
    output: Option<[i32; 2]>,
) -> Result<Started, String> {
    match backend {
        BackEnd::At(place) => {
            if program.is_some() {
                return Err(format!(
                    "The remote stub at {place} has its program already; leave out the program's name."
                ));
            }
            let remote = Remote::open(place, || Ok(())).await?;
            Ok(Started {
                remote,
                child: None,
                ours: false,
                _dir: None,
            })
        }
        BackEnd::Sim => {
            let simulator = simulator()?;
            let (program, args) = program.ok_or("No program is named.")?;
            let path = locate(program)?;
            let dir = SocketDir::new()?;
            let socket = dir.file("sim");
            let mut command = Command::new(&simulator);
            command
                .arg("--bridge")
                .arg(&socket)
                .arg("--")
                .arg(&path)
                .args(args);
            command.kill_on_drop(true);
            if let Some([out, err]) = output {
                command.stdin(std::process::Stdio::null());
                command.stdout(copy(out)?).stderr(copy(err)?);
            }
            if own_group {
                command.process_group(0);
            }
            let mut child = command
                .spawn()
                .map_err(|e| format!("{} cannot be started: {e}.", simulator.display()))?;
            let alive = || match child.try_wait() {
                Ok(Some(status)) => Err(format!(
                    "{} has ended ({status}) before it could be asked anything.",
                    simulator.display()
                )),
                _ => Ok(()),
            };
            let remote = Remote::open(&Place::Unix(socket), alive).await?;
            Ok(Started {
                remote,
                child: Some(child),
                ours: true,
                _dir: Some(dir),
            })
        }
        BackEnd::Gem5(gem5) => gem5::start(gem5.as_deref(), program).await,
    }
}

/// Opens a descriptor of ours again, for writing.
fn copy(fd: i32) -> Result<File, String> {
    let file = File::options()
        .write(true)
        .open(format!("/proc/self/fd/{fd}"));
    file.map_err(|e| format!("The program's output has no place: {e}."))
}

/// The load bias of the program: its entry in the auxiliary vector minus its entry in the file. 0 if that is not known.
pub async fn bias(remote: &mut Remote) -> Result<u64, Failure> {
    const AT_ENTRY: u64 = 9;
    let auxv = remote.object("auxv:read:", 4096).await?;
    let words = auxv.chunks_exact(8).map(|b| {
        let word = b.try_into().unwrap_or_default();
        u64::from_le_bytes(word)
    });
    let words: Vec<u64> = words.collect();
    let entry = words.chunks_exact(2).find(|pair| pair[0] == AT_ENTRY);
    // The entry is in the ELF file header.
    let mut head = [0; 32];
    let read = files::ours(Path::new(&remote.program)).and_then(|f| f.read_at(0, &mut head));
    Ok(match (entry, read) {
        (Some(pair), Ok(())) => {
            let there = head[24..32].try_into().unwrap_or_default();
            pair[1].wrapping_sub(u64::from_le_bytes(there))
        }
        _ => 0,
    })
}
