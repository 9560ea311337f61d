//! gem5 as a back end. It is started with our configuration script, which sets watches for `monitor ulpf watch`.
#![forbid(unsafe_code)]

use super::remote::{Flavour, Remote, Started};
use std::ffi::OsString;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};
use ulpf_host::listen::socket_dir::SocketDir;
use ulpf_host::programs::{find, locate};

const SCRIPT: &str = include_str!("../../../../sim-bridge/gem5/run.py");
/// Time limit for an answer: a simulator is slow.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit for gem5's start: it reads its configuration and loads the program first.
const COMING: Duration = Duration::from_secs(60);

const HOW: &str = "sim-bridge/gem5/README.md in ulpf's source tree says how a gem5 v24.0 is built with it; then name it: --gem5 PATH.";

fn program_of(gem5: Option<&Path>) -> Result<PathBuf, String> {
    match gem5 {
        Some(path) if path.is_file() => Ok(path.to_owned()),
        Some(path) => Err(format!("There is no gem5 at {}. {HOW}", path.display())),
        None => find("gem5.opt").ok_or_else(|| {
            format!("The backend \"gem5\" needs gem5, and there is no gem5.opt in PATH. {HOW}")
        }),
    }
}

async fn connect(socket: &Path, gem5: &mut Child) -> Result<UnixStream, String> {
    let end = Instant::now() + COMING;
    loop {
        let there = std::fs::metadata(socket).is_ok_and(|m| m.file_type().is_socket());
        if there && let Ok(stream) = UnixStream::connect(socket).await {
            return Ok(stream);
        }
        if let Ok(Some(status)) = gem5.try_wait() {
            return Err(format!(
                "gem5 has ended ({status}) before its remote port could be reached; it has said why above. {HOW}"
            ));
        }
        if Instant::now() > end {
            return Err(format!(
                "gem5 has not opened its remote port for {} s.",
                COMING.as_secs()
            ));
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// Starts gem5. The error is text for the user.
pub async fn start(
    gem5: Option<&Path>,
    program: Option<&(OsString, Vec<OsString>)>,
) -> Result<Started, String> {
    let gem5 = program_of(gem5)?;
    let (program, args) = program.ok_or("No program is named.")?;
    let path = locate(program)?;
    let dir = SocketDir::new()?;
    let (script, socket) = (dir.file("run.py"), dir.file("gdb"));
    std::fs::write(&script, SCRIPT).map_err(|e| format!("{}: {e}.", script.display()))?;
    let mut command = Command::new(&gem5);
    command
        .args(["--quiet", "--listener-mode=on", "--dot-config=", "--outdir"])
        .arg(dir.file("m5out"))
        .arg(&script)
        .arg("--port")
        .arg(&socket)
        .arg("--")
        .arg(&path)
        .args(args);
    command.kill_on_drop(true);
    let mut child = command
        .spawn()
        .map_err(|e| format!("{} cannot be started: {e}.", gem5.display()))?;
    let (reader, writer) = connect(&socket, &mut child).await?.into_split();
    let (reader, writer) = (Box::new(reader), Box::new(writer));
    let greeted = Remote::greet(reader, writer, Flavour::Gem5, TIMEOUT).await;
    let mut remote = greeted.map_err(|why| format!("gem5's remote port: {why}"))?;
    remote.about.name = format!("{}, with user-level page faults", gem5.display());
    remote.program = path.display().to_string();
    Ok(Started {
        remote,
        child: Some(child),
        ours: true,
        _dir: Some(dir),
    })
}
