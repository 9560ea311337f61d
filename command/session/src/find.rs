//! Chooses the session for a command, with or without a process number from the user.

use anyhow::{Context, Result, bail};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use ulpf_area::sessions::{self, Claim, Watched, Whose};
use ulpf_host::foreign::text::Bytes;
use ulpf_host::{process, sys};

/// The session of this program or of this `ulpf`; without a number, the only session. The error gives the reason and
/// the remedy.
pub fn choose(of: Option<i32>, whose: Whose) -> Result<Watched> {
    let mut sessions = sessions::find(of, whose).context("cannot look at processes")?;
    let claim = of.and_then(|pid| sessions.false_claim_of(pid));
    let claim = claim.map(Claim::to_string);
    match (sessions.list.pop(), sessions.list.len()) {
        (Some(only), 0) => Ok(only),
        (Some(last), _) => {
            sessions.list.push(last);
            let list = sessions.list.iter();
            let list = list.map(|s| format!("\n  {} ({})", s.pid, name(s.pid)));
            Err(Several(list.collect()).into())
        }
        (None, _) if claim.is_some() => bail!(claim.unwrap_or_default()),
        (None, _) => match of {
            Some(pid) if sessions.forbidden && sys::is_root() => bail!(
                "process {pid} belongs to another user; --all-users looks into other users' sessions, too"
            ),
            Some(pid) if sessions.forbidden => bail!(
                "process {pid} belongs to somebody else, who alone (and root) may look into what is watched there"
            ),
            _ if !sessions.foreign.is_empty() => bail!(
                "process {} watches with another version of ulpf; use that version's `ulpf last`",
                sessions.foreign[0]
            ),
            Some(pid) if !process::is_alive(pid) => bail!("there is no process {pid}"),
            // (Only root watches programs of other users.)
            Some(pid) if sessions.hides_some() && !is_ours(pid) => bail!(
                "process {pid} is not watched by a ulpf of yours; ulpf ({}) of another user is at work: --all-users looks into other users' sessions, too",
                sessions.others[0]
            ),
            None if sessions.hides_some() => bail!(
                "no program is watched by a ulpf of yours; ulpf ({}) of another user is at work: --all-users looks into other users' sessions, too",
                sessions.others[0]
            ),
            Some(pid) => bail!(
                "process {pid} is not watched by any ulpf; start it with `ulpf run`, or watch it with `ulpf attach --watch … {pid}`"
            ),
            None => bail!(
                "no program is watched at present; `ulpf run`, `attach`, `server` or `gdb` has to be at it"
            ),
        },
    }
}

fn is_ours(pid: i32) -> bool {
    std::fs::metadata(format!("/proc/{pid}")).is_ok_and(|found| found.uid() == sys::user())
}

/// Error of [`choose`]: the user must choose. Lists the sessions, one a line.
#[derive(Debug)]
pub struct Several(String);

impl std::error::Error for Several {}

impl fmt::Display for Several {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Several(list) = self;
        write!(
            f,
            "several programs are watched; choose one with --pid:{list}"
        )
    }
}

/// Name of the executable of process `pid`, for display.
pub fn name(pid: i32) -> String {
    let path = process::executable(pid).unwrap_or_default();
    let name = path.file_name().unwrap_or_default();
    Bytes(name.as_bytes()).to_string()
}
