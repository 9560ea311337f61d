//! Stop-the-world: how threads come to rest, and how the stub's task knows.
//!
//! ```text
//! the stub's task                         a thread of the program
//! world = 1                               state = Running (was InSyscall or Starting)
//! state? Running: send the park signal    world? 1: rest
//! wait for event                          rest: state = Parked, event += 1, wait for go
//! ```
//! Each side writes its own cell before it reads the other's. So a thread that the task took for one that rests reads
//! `world` before it does anything else. `models/src/world.rs` is the model.

use core::sync::atomic::{AtomicU32, Ordering::*};

use super::Atomic;

/// Activity of a thread of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum State {
    /// Slot not in use.
    Free = 0,
    /// Created, first instruction not yet reached.
    Starting = 1,
    /// Anywhere else: in the program's code or in ours.
    Running = 2,
    /// Inside a system call made for the program. The thread touches no program memory in user mode and checks `world`
    /// before it continues, so it counts as parked.
    InSyscall = 3,
    /// Waits on `go`; `ctx` is valid.
    Parked = 4,
    /// Waits on `go` until the stub's task has served `request`; counts as parked.
    Requesting = 5,
    /// The thread has ended, or is about to.
    Dead = 6,
}

impl State {
    /// The state behind a word.
    pub fn of(word: u32) -> State {
        match word {
            1 => State::Starting,
            2 => State::Running,
            3 => State::InSyscall,
            4 => State::Parked,
            5 => State::Requesting,
            6 => State::Dead,
            _ => State::Free,
        }
    }

    /// Whether the debugger may examine a thread in this state, which counts as parked.
    pub fn is_stopped(self) -> bool {
        matches!(self, State::Parked | State::InSyscall | State::Requesting)
    }
}

/// futex(2), as the protocol needs it.
pub trait Futexes<A> {
    /// Waits for a wake-up unless the word holds another value than `seen`. May return early.
    fn wait(&self, word: &A, seen: u32);
    /// Wakes all that wait for the word.
    fn wake(&self, word: &A);
}

/// The cells of one thread that the protocol uses. `A` is another cell in models alone.
pub struct Gate<'a, A = AtomicU32> {
    /// A [`State`].
    pub state: &'a A,
    /// Futex word: 1 lets a resting thread continue.
    pub go: &'a A,
}

impl<A: Atomic<u32>> Gate<'_, A> {
    /// Rests in state `at`, Parked or Requesting, until the task lets the thread continue. The thread's earlier writes
    /// are visible to the task once it sees the state.
    pub fn rest(&self, at: State, event: &A, futexes: &impl Futexes<A>) {
        self.state.store(at as u32, SeqCst);
        notify(event, futexes);
        while self.go.swap(0, SeqCst) == 0 {
            futexes.wait(self.go, 0);
        }
    }

    /// Lets a thread continue that waits in [`Gate::rest`]. The task's earlier writes are visible to the thread.
    pub fn let_go(&self, futexes: &impl Futexes<A>) {
        self.state.store(State::Running as u32, SeqCst);
        self.go.store(1, SeqCst);
        futexes.wake(self.go);
    }

    /// Leaves `from`, InSyscall or Starting. `false`: the thread must park before it reads what the task changes.
    pub fn may_run(&self, from: State, world: &A) -> bool {
        let (from, running) = (from as u32, State::Running as u32);
        let left = self.state.compare_exchange(from, running, SeqCst, SeqCst);
        left.is_ok() && world.load(SeqCst) == 0
    }

    /// Whether a thread that has deferred its park signal must park now.
    pub fn must_rest(&self, world: &A) -> bool {
        world.load(SeqCst) != 0 && self.state.load(SeqCst) == State::Running as u32
    }

    /// Whether a handler on this thread may read the tables that the task changes while threads are stopped. A signal may
    /// arrive inside a system call, where the thread counts as parked.
    pub fn may_read_tables(&self) -> bool {
        self.state.load(SeqCst) != State::InSyscall as u32
    }
}

/// Tells the task that a thread's state has changed.
pub fn notify<A: Atomic<u32>>(event: &A, futexes: &impl Futexes<A>) {
    event.fetch_add(1, SeqCst);
    futexes.wake(event);
}

/// Stops the world. `look` checks all threads, sends park signals, and returns a result when all are parked or the
/// program is dead. Its argument is the number of earlier calls. `pause` waits for `event`, unless that no longer has
/// this value.
pub fn stop<A: Atomic<u32>, R>(
    world: &A,
    event: &A,
    mut look: impl FnMut(u32) -> Option<R>,
    mut pause: impl FnMut(u32),
) -> R {
    world.store(1, SeqCst);
    let mut round = 0;
    loop {
        // Before the look: a change behind it ends the pause.
        let seen = event.load(SeqCst);
        if let Some(done) = look(round) {
            return done;
        }
        pause(seen);
        round += 1;
    }
}
