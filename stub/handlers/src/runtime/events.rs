//! Events of a thread, and its requests to the stub's task.

use ulpf_lib::{AccessKind, TargetAddr, WatchId, WatchKind};

pub type Tid = i32;

/// The way in which a thread continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resume {
    /// Stays parked while others run (scheduler locking).
    Hold,
    Continue {
        signal: Option<i32>,
    },
    Step {
        signal: Option<i32>,
    },
    /// Step until PC leaves `[start, end)`.
    RangeStep {
        start: TargetAddr,
        end: TargetAddr,
    },
}

impl Resume {
    /// The signal that the debugger sends along.
    pub fn signal(self) -> Option<i32> {
        match self {
            Resume::Continue { signal } | Resume::Step { signal } => signal,
            Resume::Hold | Resume::RangeStep { .. } => None,
        }
    }
}

/// Why a parked thread wants the debugger's attention.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    None,
    Breakpoint,
    Stepped,
    Watch {
        id: WatchId,
        kind: WatchKind,
        addr: TargetAddr,
        access: AccessKind,
    },
    Signal(i32),
    /// An error of the checked heap, described by this report of the findings. The faulty access has not happened yet,
    /// or only just.
    HeapError {
        report: u32,
    },
    /// The program is about to end, and its checked heap has been searched.
    HeapEnd,
    /// A system call that the debugger catches.
    Syscall {
        nr: u64,
        entry: bool,
    },
    /// The thread has forked; the child waits (see `control/follow.rs`).
    Forked {
        child: i32,
    },
    /// The thread is a vfork child that has not run yet.
    Vforked {
        parent: i32,
    },
    /// The thread's vfork child has its own memory, or has ended.
    VforkDone,
    /// The thread is about to trace this process or thread with ptrace(2); 0 if it is about to ask its parent to trace
    /// it.
    Traces {
        number: i32,
    },
    /// The program is about to end. Results that were decided here (`Global::decides`) are reported before.
    Ends,
    /// The thread is new and has not run yet (`Global::thread_events`).
    Created,
    /// The thread is about to end, with this status (`Global::thread_events`).
    Exits {
        status: i32,
    },
}

/// The events of one instruction or system call, each of which makes a stop.
#[derive(Clone, Copy)]
pub struct Events {
    list: [Event; Events::MOST],
    len: usize,
}

impl Events {
    /// Limit of events. Further watches of one access are only counted; no user examines that many one by one.
    const MOST: usize = 16;

    pub const fn none() -> Events {
        Events {
            list: [Event::None; Events::MOST],
            len: 0,
        }
    }
    pub fn push(&mut self, event: Event) {
        if let Some(slot) = self.list.get_mut(self.len) {
            *slot = event;
            self.len += 1;
        }
    }
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Puts the events for which `first` is true before the others.
    pub fn ordered(&self, first: impl Fn(&Event) -> bool) -> Events {
        let mut all = Events::none();
        self.iter().filter(&first).for_each(|e| all.push(e));
        self.iter().filter(|e| !first(e)).for_each(|e| all.push(e));
        all
    }
    /// Takes all events.
    pub fn take_all(&mut self) -> Events {
        core::mem::replace(self, Events::none())
    }
    /// Takes the first event.
    pub fn take_first(&mut self) -> Option<Event> {
        let first = self.iter().next()?;
        self.retain_after(1, |_| true);
        Some(first)
    }
    /// Keeps only the events for which `wanted` is true.
    pub fn retain(&mut self, wanted: impl Fn(&Event) -> bool) {
        self.retain_after(0, wanted);
    }
    fn retain_after(&mut self, skip: usize, wanted: impl Fn(&Event) -> bool) {
        let mut all = Events::none();
        self.iter()
            .skip(skip)
            .filter(wanted)
            .for_each(|e| all.push(e));
        *self = all;
    }
    pub fn iter(&self) -> impl Iterator<Item = Event> + '_ {
        self.list.iter().take(self.len).copied()
    }
}

/// The last error of the checked heap that was judged before the access was made: its instruction, and whether the
/// thread has stopped there since.
#[derive(Clone, Copy, Default)]
pub struct Predicted {
    pub pc: u64,
    pub stopped: bool,
}

/// Kinds of confinement, besides credentials.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Confined {
    Credentials,
    /// Root directory and namespaces.
    Place,
    /// The same, and perhaps the user namespace.
    Users,
    /// A landlock domain.
    Domain,
    Limits,
}

/// A change of moved memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// `PROT_*` bits without `PROT_EXEC`.
    Protect(u8),
    /// The content becomes zeros.
    Discard,
    /// The memory is unmapped; `Own::mapped` says so.
    Unmap,
}

/// Requests of a program thread to the stub's task. `…Begin` parks all other threads until `End`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    None,
    /// The thread's rights have changed (`Thread::rights`, and `which`); `groups` is the address of its supplementary
    /// groups.
    Confined {
        which: Confined,
        groups: u64,
        len: u32,
    },
    /// Park the others only.
    ForkBegin,
    /// A backtrace has reached unknown code at this address; 0: a file has been mapped.
    Unwind {
        at: u64,
    },
    /// Move `[start, end)` back to plain private memory: a memory call is about to change it.
    ReleaseBegin {
        start: u64,
        end: u64,
    },
    /// Change moved memory in place. `Own::changed_in_place` has the answer.
    ChangeInPlace {
        start: u64,
        end: u64,
        change: Change,
    },
    /// Find the mappings of the System V segment that begins at this address. `Own::segment` has the answer.
    Segment {
        at: u64,
    },
    /// Open the guarded pages in `[start, end)` for one step.
    OpenBegin {
        start: u64,
        end: u64,
    },
    /// The same for memory that is about to be locked or unlocked.
    LocksBegin {
        start: u64,
        end: u64,
    },
    /// Guard again the pages that [`Request::OpenBegin`] has opened since another `…Begin`.
    OpenEnd,
    /// The thread registers an area for restartable sequences. Serve it if possible; `Thread::sequences` has the answer.
    Register {
        at: u64,
        len: u32,
        signature: u32,
    },
    /// Park the others: the thread executes a restartable sequence.
    SectionBegin,
    /// Remove the patch at `at`, where that thread is.
    Plain {
        at: u64,
    },
    /// Remove the breakpoint at `addr` for one step.
    StepOverBegin {
        addr: u64,
    },
    /// Ask the command to follow this thread through exec of the file at `path`, a string that the thread keeps. The
    /// answer comes in `Global::exec_word`; `End` follows only if exec fails.
    ExecBegin {
        path: u64,
        len: u64,
        dir: i32,
    },
    /// The program or the kernel is about to write to generated code in `[start, end)`: remove patches there, and open
    /// its pages.
    CodeWritten {
        start: u64,
        end: u64,
    },
    /// A collector is about to move generated code. It returns to `back` when it has ended.
    CollectorBegins {
        back: u64,
    },
    /// The collector that was expected to return to this address has ended.
    CollectorEnds {
        at: u64,
    },
    /// The system-call site at `insn` is busy: patch it.
    Patch {
        insn: u64,
    },
    End,
    /// Compute guards again (memory appeared under a watch).
    Rearm,
    /// A new task needs its debug registers set before it runs, or watches on its own data.
    Adopt,
    /// The thread has another pointer to its own data.
    Moved,
    /// The thread is about to end: remove watches on its own data.
    Leaves,
    /// The instruction at `pc` is hot, and has accessed this page: patch it.
    PatchAccess {
        pc: u64,
        page: u64,
    },
    /// The patch at `start` meets guarded pages no more.
    Cool {
        start: u64,
    },
    /// Slots may make fewer system calls than before.
    SitesAnew,
    /// The program wants gs, or locks all its memory: remove all patches, for good.
    NoPatches,
    /// The program starts to use something that our own signal frames cannot hold.
    NoUpcalls,
    /// The program has met a limit of ours: tell the user before the thread continues.
    Tell,
    /// A pointer has changed that a watch follows.
    Retrace,
    /// The thread is about to change such a pointer: park the others.
    RetraceBegin,
    /// The watches of this page may need another placement.
    Reconsider {
        page: u64,
    },
    /// The checked heap must grow by this many bytes.
    GrowHeap {
        bytes: u64,
    },
    /// A client request poisons some of this memory: watch it.
    WatchTold {
        start: u64,
        end: u64,
    },
    /// The program ends: find the leaked blocks of the checked heap.
    FindLeaks,
    /// The program asks for a leak search.
    CountLeaks,
    /// The program ends: save the list of hot accesses for the next run.
    KeepHot,
}
