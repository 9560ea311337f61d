//! Patches: code, trampolines and their table change while the world is stopped, and a running thread uses them without
//! locks.
//!
//! The stop is the product's (`ulpf-lib/src/sync/stop_the_world.rs`). The rest mirrors `Patches::put` and `Patches::remove`
//! (`stub/task/src/control/patches.rs`), `patches::leave` (`stub/handlers/src/patches.rs`) and `ulpf_on_park`
//! (`signals/entry.rs`): their tables are maps on a heap, and their code is machine code.

use loom::sync::Arc;
use loom::thread;
use ulpf_lib::sync::stop_the_world::State;

use crate::words::{Table, check};
use crate::world::World;

/// One patch. 1: in place.
struct Patch {
    /// The jump over the access.
    jump: Table,
    /// The code that the jump leads to.
    trampoline: Table,
    /// The row of the table by which a thread inside the trampoline finds its way out.
    row: Table,
}

impl Patch {
    fn new(there: u32) -> Arc<Patch> {
        Arc::new(Patch {
            jump: Table::new(there),
            trampoline: Table::new(there),
            row: Table::new(there),
        })
    }

    /// `Patches::put`.
    fn put(&self) {
        self.trampoline.write(1);
        self.jump.write(1);
        self.row.write(1);
    }

    /// `Patches::remove`. The trampoline's cave is free afterwards.
    fn remove(&self) {
        self.row.write(0);
        self.jump.write(0);
        self.trampoline.write(0);
    }

    /// Executes the access once, by the trampoline if the jump is there. A park signal may arrive in the middle of the
    /// trampoline: the thread leaves it before it stops, and makes the access again.
    fn access(&self, world: &World, n: usize) {
        while self.jump.read() == 1 {
            assert_eq!(self.trampoline.read(), 1, "the jump leads to a free cave");
            if !world.is_struck(n) {
                assert_eq!(
                    self.trampoline.read(),
                    1,
                    "the body is gone under the thread"
                );
                return;
            }
            assert_eq!(self.row.read(), 1, "the trampoline is not known any more");
            world.on_park(n);
        }
        if world.is_struck(n) {
            world.on_park(n);
        }
    }
}

fn run(there: u32, change: fn(&Patch)) {
    check(3, move || {
        let world = World::new(&[State::Running]);
        let patch = Patch::new(there);
        let thread = {
            let (world, patch) = (world.clone(), patch.clone());
            thread::spawn(move || {
                patch.access(&world, 0);
                patch.access(&world, 0);
                world.end(0);
            })
        };
        world.stop();
        change(&patch);
        world.go_on();
        thread.join().unwrap();
    });
}

/// A patch is placed while a thread executes the access.
///
/// Fails if the task does not stop the world, and if `Gate::let_go` writes `go` relaxed.
#[test]
fn a_patch_that_comes_is_whole() {
    run(0, Patch::put);
}

/// A patch is removed while a thread may be inside its trampoline.
///
/// Fails if the task does not stop the world, if the thread stops before it leaves the trampoline, and if it continues
/// inside the trampoline after its stop.
#[test]
fn no_thread_is_in_a_removed_trampoline() {
    run(1, Patch::remove);
}
