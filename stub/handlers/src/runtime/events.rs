//! What a thread has met, and what it asks of the stub's task.

use ulpf_lib::{AccessKind, TargetAddr, WatchId, WatchKind};

pub type Tid = i32;

/// How one thread goes on.
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
    /// An error of the checked heap, of which the findings have this report: what it is about has not happened yet, or
    /// only just.
    HeapError {
        report: u32,
    },
    /// The program is about to end, and its checked heap has been looked at.
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
    /// The thread is about to take hold of this process or thread with ptrace(2); 0: it is about to ask its parent to
    /// take hold of it.
    Traces {
        number: i32,
    },
    /// The program is about to end: what was decided here (`Global::decides`) is told before.
    Ends,
    /// The thread is new and has not run yet (`Global::thread_events`).
    Created,
    /// The thread is about to end, with this status (`Global::thread_events`).
    Exits {
        status: i32,
    },
}

/// What one instruction or system call is to be reported for, one stop after the other.
#[derive(Clone, Copy)]
pub struct Events {
    list: [Event; Events::MOST],
    len: usize,
}

impl Events {
    /// More watches under one access than anybody looks at one by one; the rest is only counted.
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
    /// Those that `first` names come before the others.
    pub fn ordered(&self, first: impl Fn(&Event) -> bool) -> Events {
        let mut all = Events::none();
        self.iter().filter(&first).for_each(|e| all.push(e));
        self.iter().filter(|e| !first(e)).for_each(|e| all.push(e));
        all
    }
    /// Takes all of them.
    pub fn take_all(&mut self) -> Events {
        core::mem::replace(self, Events::none())
    }
    /// Takes the first one.
    pub fn take_first(&mut self) -> Option<Event> {
        let first = self.iter().next()?;
        self.retain_after(1, |_| true);
        Some(first)
    }
    /// Only those that `wanted` names stay.
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

/// The last error of the checked heap that was judged before it was made: its instruction, and whether the thread has stopped
/// there since.
#[derive(Clone, Copy, Default)]
pub struct Foreseen {
    pub pc: u64,
    pub stopped: bool,
}

/// Beside credentials.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Confined {
    Credentials,
    /// Root and namespaces.
    Place,
    /// The same, and perhaps the user namespace.
    Users,
    /// A landlock domain.
    Domain,
    Limits,
}

/// What a program thread asks of the stub's task. `…Begin` parks all other threads until `End`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    None,
    /// What the thread may has changed (`Thread::rights`, and this); `groups`: so many supplementary groups.
    Confined {
        which: Confined,
        groups: u64,
        len: u32,
    },
    /// Park the others; nothing else.
    ForkBegin,
    /// Code at this address, which a backtrace has come to, is not known; 0: a file has been mapped.
    Unwind {
        at: u64,
    },
    /// Give `[start, end)` back to plain private memory: a memory call is about to change it.
    ReleaseBegin {
        start: u64,
        end: u64,
    },
    /// Change moved memory where it is: another protection, or (`None`) no content. `Own::changed_in_place` has the answer.
    ChangeInPlace {
        start: u64,
        end: u64,
        prot: Option<u8>,
    },
    /// Open the guarded pages in `[start, end)` for one step.
    OpenBegin {
        start: u64,
        end: u64,
    },
    /// The same: memory there is about to be locked, or unlocked.
    LocksBegin {
        start: u64,
        end: u64,
    },
    /// Close again what [`Request::OpenBegin`] has opened since another `…Begin`.
    OpenEnd,
    /// The thread registers an area for restartable sequences: is it to be served? (`Thread::sequences` has the answer.)
    Register {
        at: u64,
        len: u32,
        signature: u32,
    },
    /// Park the others: the thread makes a restartable sequence.
    SectionBegin,
    /// No patch at `at`, where that thread is.
    Plain {
        at: u64,
    },
    /// Take the breakpoint at `addr` out for one step.
    StepOverBegin {
        addr: u64,
    },
    /// Ask the command to follow this thread through exec of the file at `path`, a string that the
    /// thread keeps. The word comes in `Global::exec_word`; `End` only if exec fails.
    ExecBegin {
        path: u64,
        len: u64,
        dir: i32,
    },
    /// Somebody is about to write to generated code in `[start, end)`: no patches there, and its pages open.
    CodeWritten {
        start: u64,
        end: u64,
    },
    /// A collector is about to move generated code, and will go on at `back` when it has.
    CollectorBegins {
        back: u64,
    },
    /// The collector that was to go on `at` this address does.
    CollectorEnds {
        at: u64,
    },
    /// The system-call site at `insn` is busy: patch it.
    Patch {
        insn: u64,
    },
    End,
    /// Guards have to be computed anew (memory appeared under a watch).
    Rearm,
    /// A new task needs its debug registers set before it runs, or watches on its own data.
    Adopt,
    /// The thread has another pointer to its own data.
    Moved,
    /// The thread is about to end: its own data is what nobody watches any more.
    Leaves,
    /// The instruction at `pc` is hot, and has met this page: patch it.
    PatchAccess {
        pc: u64,
        page: u64,
    },
    /// The patch at `start` meets no guarded page any more.
    Cool {
        start: u64,
    },
    /// Fewer system calls may be made by slots than before.
    SitesAnew,
    /// The program wants gs, or locks all its memory: no patches any more.
    NoPatches,
    /// The program begins something that our own signal frames cannot hold.
    NoUpcalls,
    /// The program has met a limit of ours: the user hears of it before the thread goes on.
    Tell,
    /// A pointer has changed that a watch follows.
    Retrace,
    /// The thread is about to change one: park the others.
    RetraceBegin,
    /// The watches of this page may be better off in another place.
    Reconsider {
        page: u64,
    },
    /// The checked heap needs so many bytes more.
    GrowHeap {
        bytes: u64,
    },
    /// The program tells that nobody may touch some of this memory.
    WatchTold {
        start: u64,
        end: u64,
    },
    /// The program ends: which blocks of the checked heap are left?
    FindLeaks,
    /// The program wants to know what is lost by now.
    CountLeaks,
    /// The program ends: which accesses were hot is kept for the next run.
    KeepHot,
}
