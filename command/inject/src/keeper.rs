//! When `ulpf` is killed: a process beside it takes the last of ours out of the programs.
//!
//! ```text
//!   ulpf ── inject PID FLAGS ─────────▶ keeper     lines on a socket; when ulpf ends, the socket does
//!        ◀─ STUB ARGS, descriptors ──────│         traces the program, and puts the stub into it (`attach`)
//!        ── + PID ARGS STUB, - PID ─────▶│
//!     ╳ killed                           │
//!   stub: lets go of the program, ends   └─▶ waits for that, then as after a detach (`remains`)
//! ```
//! It is `ulpf` itself, executed anew: what it holds of `ulpf` is that socket alone, so that everything else ends when `ulpf`
//! does. It has a process group of its own, which no key of a terminal reaches. A session that ends in order takes its program
//! off the list, and an empty list ends the keeper (`kept`).
//!
//! A tracer that is killed leaves the program in the middle of what it does for `ulpf`. So the keeper is the tracer of a
//! running program: whenever `ulpf` is killed, the stub is put in as a whole, finds nobody, and leaves.
#![forbid(unsafe_code)]

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use ulpf_host::foreign::numbers::Process;

/// The first argument of a keeper.
pub const WORD: &str = "__keeper";

/// This program knows [`WORD`].
static ENABLED: AtomicBool = AtomicBool::new(false);
static KEEPER: Mutex<Keeper> = Mutex::new(Keeper::None);

enum Keeper {
    None,
    Listens(UnixStream),
    /// It could not be started, or has been killed: everything is as without one.
    Failed,
    /// It is this process, which is to read these lines.
    Here(Vec<String>),
}

fn keeper() -> MutexGuard<'static, Keeper> {
    KEEPER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// This program is a keeper (`kept`) when its first argument is [`WORD`].
pub fn enable() {
    ENABLED.store(true, Relaxed);
}

/// Starts the keeper of this process, unless it runs.
pub(crate) fn begin() {
    if !ENABLED.load(Relaxed) {
        return;
    }
    let mut keeper = keeper();
    if matches!(*keeper, Keeper::None) {
        *keeper = start().map_or(Keeper::Failed, Keeper::Listens);
    }
}

fn start() -> io::Result<UnixStream> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("ulpf").arg(WORD).env_clear().current_dir("/");
    command.stdin(OwnedFd::from(theirs));
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.process_group(0).spawn().map(|_| ours)
}

/// This process is the keeper: what it is to be told, it gets by [`told_here`].
pub(crate) fn is_here() {
    *keeper() = Keeper::Here(Vec::new());
}

/// The lines that this process has told itself.
pub(crate) fn told_here() -> Vec<String> {
    match &mut *keeper() {
        Keeper::Here(lines) => std::mem::take(lines),
        _ => Vec::new(),
    }
}

/// What the keeper hands over of a stub that it has put into a program (`load::Loaded`).
pub(crate) struct Handed {
    pub stub_pid: i32,
    /// Address of its boot block.
    pub args: u64,
    pub control: UnixStream,
    pub shared: File,
}

/// The stub, put into a running program by the keeper. `None`: it could not, for a reason that whoever tries it here will
/// find, or there is none.
pub(crate) fn inject(process: &Process, flags: u32) -> Option<Handed> {
    let mut keeper = keeper();
    let Keeper::Listens(socket) = &mut *keeper else {
        return None;
    };
    let line = format!("inject {} {flags}\n", process.pid);
    let answer = socket
        .write_all(line.as_bytes())
        .and_then(|()| receive(socket));
    match answer {
        // Another process may have its number where it has ended meanwhile.
        Ok(handed) => handed.filter(|_| !process.has_ended()),
        Err(_) => {
            *keeper = Keeper::Failed;
            None
        }
    }
}

/// What the keeper answers: the numbers of [`Handed`], each of 8 bytes, with its descriptors. Nothing but one byte: it has
/// failed.
const ANSWER: usize = 16;

pub(crate) fn send(socket: impl AsFd, handed: Option<Handed>) -> io::Result<()> {
    let mut bytes = Vec::new();
    let mut fds = Vec::new();
    if let Some(handed) = &handed {
        bytes.extend(i64::from(handed.stub_pid).to_le_bytes());
        bytes.extend(handed.args.to_le_bytes());
        fds.extend([handed.control.as_fd(), handed.shared.as_fd()]);
    } else {
        bytes.push(0);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&fds));
    }
    let bytes = [IoSlice::new(&bytes)];
    rustix::io::retry_on_intr(|| {
        sendmsg(socket.as_fd(), &bytes, &mut control, SendFlags::NOSIGNAL)
    })?;
    Ok(())
}

fn receive(socket: &UnixStream) -> io::Result<Option<Handed>> {
    let mut bytes = [0; ANSWER];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let got = rustix::io::retry_on_intr(|| {
        let mut bytes = [IoSliceMut::new(&mut bytes)];
        recvmsg(socket, &mut bytes, &mut control, flags)
    })?
    .bytes;
    if got == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut fds = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => fds.collect(),
        _ => Vec::new(),
    });
    let (Some(channel), Some(shared)) = (fds.next(), fds.next()) else {
        return Ok(None);
    };
    let number = |at: usize| {
        let mut number = [0; 8];
        number.copy_from_slice(&bytes[at..at + 8]);
        u64::from_le_bytes(number)
    };
    Ok(Some(Handed {
        stub_pid: number(0) as i32,
        control: channel.into(),
        shared: shared.into(),
        args: number(8),
    }))
}

/// A stub is in this program from now on, with its boot block at `args`: to be told before the program's threads go on.
pub(crate) fn note(pid: i32, stub_pid: i32, args: u64) {
    begin();
    tell(&format!("+ {pid} {args} {stub_pid}\n"));
}

/// Nothing of ours is in it any more.
pub(crate) fn forget(process: &Process) {
    tell(&format!("- {}\n", process.pid));
}

fn tell(line: &str) {
    let mut keeper = keeper();
    match &mut *keeper {
        Keeper::Listens(to) => {
            if to.write_all(line.as_bytes()).is_err() {
                *keeper = Keeper::Failed;
            }
        }
        Keeper::Here(lines) => lines.push(line.into()),
        Keeper::None | Keeper::Failed => {}
    }
}
