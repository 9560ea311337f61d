//! What the tasks that run processes tell the log, and what they ask of it: the log owns symbols and watches.

use super::parent::Parent;
use super::watches::Changes;
use tokio::sync::oneshot;
use ulpf_area::SharedArea;
use ulpf_inferior::Inferior;
use ulpf_lib::command::HeapCheck;
use ulpf_session::armed::Armed;
use ulpf_session::control_socket::Ask;
use ulpf_session::drain::Drained;
use ulpf_session::memory::ProcessMemory;
use ulpf_session::merge::Batch;

/// What reaches the log. Numbers are those of lives.
pub enum Event {
    Hits(usize, Batch),
    /// Instructions, and (`true`) return addresses, that a compact log has not named yet.
    Code(usize, Vec<(u64, bool)>),
    /// A compact log has all that the ring had.
    Drained(usize, Drained),
    /// The rings have been read to their end.
    NoMoreHits(usize),
    /// It is time to look for what a check of the heap has found.
    Look,
    /// The process is stopped after its list of libraries has changed. Answer what to arm.
    Libraries(usize, oneshot::Sender<Changes>),
    /// Lines that the stub has for the user.
    Notice(String),
    /// Somebody wants to know which watches there are.
    List(usize, oneshot::Sender<String>),
    /// The stub has told of so many places that have allocated blocks: which they are.
    Blocks(usize, u32, oneshot::Sender<String>),
    /// Somebody wants other watches, and the process rests.
    Change(usize, Ask, oneshot::Sender<Planned>),
    /// Outcome of arming the watch of that number.
    Armed(usize, usize, Armed),
    Forked(Box<Forked>),
    Spawned(Box<Spawned>),
    Entered(Entered),
    Reexecuted(Reexecuted),
    Ready(Ready),
    /// The process has ended, or was detached from; or has executed itself again.
    Ended(usize),
}

/// What is to be done for a request, or why not.
pub type Planned = Result<(usize, Changes), String>;

/// A forked child, at rest where it returns from fork.
pub struct Forked {
    /// Number of its parent in the log.
    pub parent: usize,
    pub inferior: Inferior,
    pub on_signal: OnSignal,
    /// As [`super::control::Control::follows_any`].
    pub follows_any: bool,
    /// As [`super::control::Control::heap`].
    pub heap: Option<HeapCheck>,
    /// The boot block of its parent's stub.
    pub parents_heap: Option<u64>,
    /// Its parent, which waits in fork until it runs.
    pub parent_waits: Option<Parent>,
}

/// A vfork child has executed the program again, and rests at its first instruction.
pub type Spawned = Forked;

/// It has come to its entry.
pub struct Entered {
    pub life: usize,
    /// Where it is to run before its watches are resolved.
    pub reply: oneshot::Sender<Vec<u64>>,
}

/// The program has executed itself again, and rests at its entry.
pub struct Reexecuted {
    /// Its number in the log up to now.
    pub before: usize,
    pub shared: SharedArea,
    /// Its new number, and where it is to run before its watches are resolved.
    pub reply: oneshot::Sender<(usize, Vec<u64>)>,
}

/// It has come there.
pub struct Ready {
    pub life: usize,
    pub memory: ProcessMemory,
    pub reply: oneshot::Sender<Changes>,
}

/// What a signal to ourselves means for a process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum OnSignal {
    /// The program gets it, too.
    Forward,
    /// We let go of the process.
    Leave,
    /// It is its parent's business, until the first process has ended: then as `Leave`.
    Nothing,
}
