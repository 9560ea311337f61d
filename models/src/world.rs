//! Parking and stop-the-world: the program's threads and the stub's task.
//!
//! Stopping, going on and leaving a system call are the product's code (`ulpf-lib/src/sync/stop_the_world.rs`). The handlers and
//! the task's loop around them are modelled here. A signal arrives at points that the model's thread names.

use std::sync::atomic::Ordering::*;

use loom::sync::Arc;
use loom::thread;
use ulpf_lib::sync::Atomic;
use ulpf_lib::sync::stop_the_world::{self, Futexes, Gate, State};

use crate::words::{Futex, Table, Word32, check};

/// The fields of `Thread` (`stub/handlers/src/runtime/thread.rs`) that the protocol uses.
pub struct Thread {
    state: Word32,
    go: Word32,
    /// The kernel has a park signal for the thread.
    signal: Word32,
    go_futex: Futex,
}

pub struct World {
    world: Word32,
    event: Word32,
    event_futex: Futex,
    /// By number, as in the registry.
    pub threads: Vec<Thread>,
    /// A table that the task changes while the world is stopped and handlers read without locks.
    pub table: Table,
}

/// Each futex word has a queue of its own.
impl Futexes<Word32> for World {
    fn wait(&self, word: &Word32, seen: u32) {
        self.queue(word).wait(word, seen);
    }
    fn wake(&self, word: &Word32) {
        self.queue(word).wake();
    }
}

impl World {
    /// With threads in these states.
    pub fn new(states: &[State]) -> Arc<World> {
        let thread = |state: &State| Thread {
            state: Word32::new(*state as u32),
            go: Word32::new(0),
            signal: Word32::new(0),
            go_futex: Futex::new(),
        };
        Arc::new(World {
            world: Word32::new(0),
            event: Word32::new(0),
            event_futex: Futex::new(),
            threads: states.iter().map(thread).collect(),
            table: Table::new(0),
        })
    }

    fn queue(&self, word: &Word32) -> &Futex {
        let of = self.threads.iter().find(|t| std::ptr::eq(&t.go, word));
        of.map_or(&self.event_futex, |t| &t.go_futex)
    }

    fn gate(&self, n: usize) -> Gate<'_, Word32> {
        let Thread { state, go, .. } = &self.threads[n];
        Gate { state, go }
    }

    fn state(&self, n: usize) -> State {
        State::of(self.threads[n].state.load(SeqCst))
    }

    // ---- on a thread of the program --------------------------------------------------------------

    /// `park` (`runtime/park.rs`).
    fn park(&self, n: usize) {
        self.gate(n).rest(State::Parked, &self.event, self);
    }

    /// Returns whether a park signal arrives here.
    pub fn is_struck(&self, n: usize) -> bool {
        self.threads[n].signal.swap(0, SeqCst) != 0
    }

    /// `ulpf_on_park` (`signals/entry.rs`) in the program's code. `true`: the thread has stopped.
    pub fn on_park(&self, n: usize) -> bool {
        let stopped = self.world.load(SeqCst) != 0;
        if stopped {
            self.park(n);
        }
        stopped
    }

    /// The program's code, where a park signal may arrive.
    fn runs(&self, n: usize) {
        if self.is_struck(n) {
            self.on_park(n);
        }
    }

    /// `enter_syscall` (`runtime/park.rs`).
    fn enter_syscall(&self, n: usize) {
        let state = &self.threads[n].state;
        state.store(State::InSyscall as u32, SeqCst);
    }

    /// `leave_syscall`, and `ulpf_child` (`syscalls/process.rs`) of a thread that is Starting.
    fn leave(&self, n: usize, from: State) {
        if !self.gate(n).may_run(from, &self.world) {
            self.park(n);
        }
    }

    /// `late` (`signals/raise.rs`). `true`: the thread has stopped.
    fn late(&self, n: usize, attention: &mut bool) -> bool {
        *attention = false;
        let must = self.gate(n).must_rest(&self.world);
        // (The product has blocked signals by now; the protocol does not need that.)
        *attention |= self.is_struck(n);
        if must {
            self.park(n);
        }
        must
    }

    /// `end_thread` (`syscalls/ends.rs`).
    pub fn end(&self, n: usize) {
        let state = &self.threads[n].state;
        state.store(State::Dead as u32, SeqCst);
        stop_the_world::notify(&self.event, self);
    }

    // ---- on the stub's task ----------------------------------------------------------------------

    /// `stop` (`stub/task/src/control/world.rs`). Signals are sent once: the model shows that once is enough.
    pub fn stop(&self) {
        let mut signalled = vec![false; self.threads.len()];
        let look = |_| {
            let mut pending = false;
            for (n, signalled) in signalled.iter_mut().enumerate() {
                let state = self.state(n);
                if state.is_stopped() || matches!(state, State::Free | State::Dead) {
                    continue;
                }
                pending = true;
                if state == State::Running && !std::mem::replace(signalled, true) {
                    self.threads[n].signal.store(1, SeqCst);
                }
            }
            (!pending).then_some(())
        };
        let pause = |seen| self.wait(&self.event, seen);
        stop_the_world::stop(&self.world, &self.event, look, pause);
    }

    /// `World::goes_on`, then the task's loop, until all threads have ended. The loop releases threads that have parked
    /// for a stop that is over (`control/requests.rs`).
    pub fn go_on(&self) {
        self.world.store(0, SeqCst);
        loop {
            let seen = self.event.load(SeqCst);
            let mut live = false;
            for n in 0..self.threads.len() {
                match self.state(n) {
                    State::Free | State::Dead => continue,
                    State::Parked => self.gate(n).let_go(self),
                    _ => {}
                }
                live = true;
            }
            if !live {
                return;
            }
            self.wait(&self.event, seen);
        }
    }
}

/// The task changes a table while the world is stopped. A running thread reads it, also one that returns from a system
/// call. No two accesses race, and no wake-up is lost.
///
/// Fails if `stop` sets `world` relaxed, or reads `event` after its look. Fails if `Gate::may_run` does not read
/// `world`, reads it before it changes the state, or changes the state relaxed. Fails if `Gate::let_go` writes `go`
/// relaxed, or before the state. Fails if `notify` or `Gate::let_go` does not wake.
#[test]
fn no_thread_reads_tables_while_they_change() {
    check(3, || {
        let world = World::new(&[State::Running]);
        let thread = {
            let world = world.clone();
            thread::spawn(move || {
                world.table.read();
                world.runs(0);
                world.table.read();
                world.enter_syscall(0);
                world.leave(0, State::InSyscall);
                assert_ne!(world.table.read(), 1, "half of a change");
                world.end(0);
            })
        };
        world.stop();
        world.table.write(1);
        world.table.write(2);
        world.go_on();
        thread.join().unwrap();
    });
}

/// A thread that is created during a stop parks before it reads a table, although the task may never see it start.
///
/// Fails if `Gate::may_run` does not read `world`.
#[test]
fn a_thread_that_is_created_during_a_stop_parks_first() {
    // The child's record comes before its creator's: it may be free when the task looks there.
    const CHILD: usize = 0;
    const CREATOR: usize = 1;
    check(2, || {
        let world = World::new(&[State::Free, State::Running]);
        let creator = {
            let world = world.clone();
            thread::spawn(move || {
                let state = &world.threads[CHILD].state;
                state.store(State::Starting as u32, SeqCst);
                let child = {
                    let world = world.clone();
                    thread::spawn(move || {
                        world.leave(CHILD, State::Starting);
                        world.table.read();
                        world.end(CHILD);
                    })
                };
                world.runs(CREATOR);
                world.end(CREATOR);
                child.join().unwrap();
            })
        };
        world.stop();
        world.table.write(1);
        world.go_on();
        creator.join().unwrap();
    });
}

/// A park signal that arrives in our own code is noted in `Thread::attention` and served on the way out.
///
/// Mirrors `interrupted_ourselves`, `ulpf_late` and the end of `fault` and `ulpf_return` (`runtime/asm.rs`). Fails if
/// the note is cleared after the look at `world`, or without that look. Fails if a signal on the way out does not send
/// the thread back.
#[test]
fn a_note_of_a_park_signal_is_not_lost() {
    check(3, || {
        let world = World::new(&[State::Running]);
        let thread = {
            let world = world.clone();
            thread::spawn(move || {
                // In a handler. One of the program's signals has been noted already.
                let (mut attention, mut rested) = (true, false);
                loop {
                    while attention {
                        rested |= world.late(0, &mut attention);
                        // Behind the look, before the return.
                        attention |= world.is_struck(0);
                    }
                    // Between the test of the note and the return itself: back to the test.
                    if !world.is_struck(0) {
                        break;
                    }
                    attention = true;
                }
                // In the program's code. The task has sent one signal: if that was lost, this does not end.
                while !rested {
                    rested = world.is_struck(0) && world.on_park(0);
                    thread::yield_now();
                }
                world.end(0);
            })
        };
        world.stop();
        world.table.write(1);
        world.go_on();
        thread.join().unwrap();
    });
}

/// A signal that arrives inside a system call, where the thread counts as stopped, does not read tables.
///
/// Mirrors `arrived` and `ulpf_on_park` (`signals/entry.rs`). Fails without `Gate::may_read_tables`: that was a real
/// bug, in which a handler searched tables of patches while the task changed them.
#[test]
fn a_signal_inside_a_system_call_reads_no_table() {
    check(2, || {
        let world = World::new(&[State::Running]);
        let thread = {
            let world = world.clone();
            thread::spawn(move || {
                world.enter_syscall(0);
                // One of the program's signals, which needs no permission of the task.
                if world.gate(0).may_read_tables() {
                    world.table.read();
                }
                world.leave(0, State::InSyscall);
                if world.gate(0).may_read_tables() {
                    world.table.read();
                }
                world.end(0);
            })
        };
        world.stop();
        world.table.write(1);
        world.go_on();
        thread.join().unwrap();
    });
}
