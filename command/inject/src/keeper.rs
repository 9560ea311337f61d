//! The keeper: a process beside `ulpf` that removes the stub's remains from the programs when `ulpf` is killed.
//!
//! ```text
//!   ulpf ── inject PID FLAGS ─────────▶ keeper     lines on a socket; when ulpf ends, the socket does
//!        ◀─ STUB ARGS, descriptors ──────│         traces the program, and puts the stub into it (`attach`)
//!        ── ~ PID, + PID ARGS STUB ─────▶│         a stub is being put into PID; it is there
//!        ── - PID ──────────────────────▶│         nothing of ours is there
//!        ── take PID ───────────────────▶│         traces the program, and removes the remains
//!        ◀─ done · failed · unknown ─────│
//!     ╳ killed                           │
//!   stub: lets go of the program, ends   └─▶ waits for that, then as after a detach (`remains`)
//! ```
//! The keeper is `ulpf` itself, started by a new exec. Of `ulpf` it holds only that socket, so that all other resources
//! end with `ulpf`. It has its own process group, which the terminal does not signal. A session that ends normally
//! takes its program off the list, and an empty list ends the keeper (`kept`).
//!
//! A program survives the death of its tracer (`unaided`): a thread of the program completes each injected call by
//! itself. Half an operation is still one. So the keeper traces running programs, and `ulpf` those that it follows into a
//! child or an exec. If one of the two is killed, the other one completes the operation, or removes what is left of it.
#![forbid(unsafe_code)]

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::fs::File;
use std::io::{self, BufRead, BufReader, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use ulpf_host::foreign::numbers::Process;
use ulpf_host::programs;

/// The first argument of a keeper.
pub const WORD: &str = "__keeper";

/// This program handles [`WORD`].
static ENABLED: AtomicBool = AtomicBool::new(false);
static KEEPER: Mutex<Keeper> = Mutex::new(Keeper::None);

enum Keeper {
    None,
    Listens(UnixStream),
    /// It could not be started, or has been killed; everything works as without a keeper.
    Failed,
    /// This process is the keeper, and reads these lines itself.
    Here(Vec<String>),
}

fn keeper() -> MutexGuard<'static, Keeper> {
    KEEPER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Declares that this program becomes a keeper (`kept`) if its first argument is [`WORD`].
pub fn enable() {
    ENABLED.store(true, Relaxed);
}

/// Starts the keeper of this process, unless it runs. A new one does not know the programs of one that was killed.
pub(crate) fn begin() {
    if !ENABLED.load(Relaxed) {
        return;
    }
    let mut keeper = keeper();
    if matches!(*keeper, Keeper::None | Keeper::Failed) {
        *keeper = match programs::start_helper(WORD) {
            Ok((_, socket)) => Keeper::Listens(socket),
            Err(_) => Keeper::Failed,
        };
    }
}

/// Declares this process the keeper; [`lines_here`] returns its lines to itself.
pub(crate) fn is_here() {
    *keeper() = Keeper::Here(Vec::new());
}

/// The lines that this process has sent itself.
pub(crate) fn lines_here() -> Vec<String> {
    match &mut *keeper() {
        Keeper::Here(lines) => std::mem::take(lines),
        _ => Vec::new(),
    }
}

/// A stub that the keeper has injected into a program, as handed over (`load::Loaded`).
pub(crate) struct Handed {
    pub stub_pid: i32,
    /// Address of its boot block.
    pub args: u64,
    pub control: UnixStream,
    pub shared: File,
}

/// Lets the keeper inject the stub into a running program. `None` without a keeper, or if it failed; the caller then
/// tries the injection itself and finds the reason.
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
        // If the process has ended meanwhile, another one may have its number.
        Ok(handed) => handed.filter(|_| !process.has_ended()),
        Err(_) => {
            *keeper = Keeper::Failed;
            None
        }
    }
}

/// Length of the keeper's answer: the numbers of [`Handed`], 8 bytes each, sent with its descriptors. A failure is a
/// single byte.
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

/// Tells the keeper that this process is about to put a stub into the program.
pub(crate) fn begins(pid: i32) {
    begin();
    tell(&format!("~ {pid}\n"));
}

/// Tells the keeper that a stub is in this program, with its boot block at `args`. Call it before the program's threads
/// resume.
pub(crate) fn note(pid: i32, stub_pid: i32, args: u64) {
    begin();
    tell(&format!("+ {pid} {args} {stub_pid}\n"));
}

/// Tells the keeper that the program contains nothing of ours any more.
pub(crate) fn forget(process: &Process) {
    tell(&format!("- {}\n", process.pid));
}

/// The keeper's answers to `take`.
pub(crate) const DONE: &str = "done";
pub(crate) const FAILED: &str = "failed";
pub(crate) const UNKNOWN: &str = "unknown";

/// Name of the helper process in lists of processes.
pub(crate) const NAME: &str = "ulpf-keeper";

/// Lets the keeper remove the remains from a program that [`note`] has named. `false` without a keeper, or if it
/// failed; the caller then tries itself and finds the reason.
pub(crate) fn take_away(process: &Process) -> bool {
    let mut keeper = keeper();
    let Keeper::Listens(socket) = &mut *keeper else {
        return false;
    };
    let line = format!("take {}\n", process.pid);
    let answer = socket
        .write_all(line.as_bytes())
        .and_then(|()| read_line(socket));
    match answer {
        Ok(answer) => answer == DONE,
        Err(_) => {
            *keeper = Keeper::Failed;
            false
        }
    }
}

/// A line of the keeper's, which sends nothing behind it.
fn read_line(socket: &UnixStream) -> io::Result<String> {
    let mut line = String::new();
    BufReader::new(socket).read_line(&mut line)?;
    let end = || io::ErrorKind::UnexpectedEof;
    Ok(line.strip_suffix('\n').ok_or_else(end)?.to_string())
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
