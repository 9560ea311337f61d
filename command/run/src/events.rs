//! Messages from the tasks that run processes to the log, which owns symbols and watches.

use super::parent::Parent;
use super::watches::Changes;
use tokio::sync::oneshot;
use ulpf_area::SharedArea;
use ulpf_inject::inferior::Inferior;
use ulpf_lib::command::HeapCheck;
use ulpf_session::armed::Armed;
use ulpf_session::control_socket::Ask;
use ulpf_session::drain::Drained;
use ulpf_session::memory::ProcessMemory;
use ulpf_session::merge::Batch;

/// A message to the log. Numbers are those of lives.
pub enum Event {
    Hits(usize, Batch),
    /// Instructions and (`true`) return addresses that are new to a compact log.
    Code(usize, Vec<(u64, bool)>),
    /// A compact log has received all hits of the ring.
    Drained(usize, Drained),
    /// The rings have been read to their end.
    NoMoreHits(usize),
    /// Read the new findings of the heap check.
    Look,
    /// The process is stopped after a change of its list of libraries; answer with the watches to arm.
    Libraries(usize, oneshot::Sender<Changes>),
    /// Lines of the stub for the user.
    Notice(String),
    /// A client asks for the list of watches.
    List(usize, oneshot::Sender<String>),
    /// The stub has reported this many places with allocated blocks; answer with the blocks.
    Blocks(usize, u32, oneshot::Sender<String>),
    /// A client asks for a change of watches, and the process is stopped.
    Change(usize, Ask, oneshot::Sender<Planned>),
    /// Outcome of arming the watch with this number.
    Armed(usize, usize, Armed),
    Forked(Box<Forked>),
    Spawned(Box<Spawned>),
    Entered(Entered),
    Reexecuted(Reexecuted),
    Ready(Ready),
    /// The process has ended, was detached from, or has called exec again.
    Ended(usize),
}

/// Changes for a request, or the reason of its refusal.
pub type Planned = Result<(usize, Changes), String>;

/// A forked child, stopped where it returns from fork.
pub struct Forked {
    /// Number of its parent in the log.
    pub parent: usize,
    pub inferior: Inferior,
    pub on_signal: OnSignal,
    /// As [`super::control::Control::follows_any`].
    pub follows_any: bool,
    /// As [`super::control::Control::heap`].
    pub heap: Option<HeapCheck>,
    /// As [`super::control::Control::blame`].
    pub blame: bool,
    /// The boot block of its parent's stub.
    pub parents_heap: Option<u64>,
    /// Its parent, which waits in fork until the child runs.
    pub parent_waits: Option<Parent>,
}

/// A vfork child has executed the program again, and is stopped at its first instruction.
pub type Spawned = Forked;

/// A program is stopped at its entry.
pub struct Entered {
    pub life: usize,
    /// Answer: addresses to run to before the watches are resolved.
    pub reply: oneshot::Sender<Vec<u64>>,
}

/// The program has executed itself again, and is stopped at its entry.
pub struct Reexecuted {
    /// Its previous number in the log.
    pub before: usize,
    pub shared: SharedArea,
    /// Answer: its new number, and addresses to run to before the watches are resolved.
    pub reply: oneshot::Sender<(usize, Vec<u64>)>,
}

/// A program is stopped where its watches are resolved.
pub struct Ready {
    pub life: usize,
    pub memory: ProcessMemory,
    pub reply: oneshot::Sender<Changes>,
}

/// Effect of a signal to ourselves on a process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum OnSignal {
    /// The program gets it, too.
    Forward,
    /// We release the process.
    Leave,
    /// None until the first process has ended, because its parent handles the signal; then as `Leave`.
    Nothing,
}
