//! Functions that the command has found for a check of the heap: by the symbol table of a static program, or because the
//! user has named them (`ulpf check --allocator`).

use ulpf_lib::command::{Does, HeapFunction};
use ulpf_lib::guard::maps::Snapshot;
use ulpf_lib::ring::findings::By;
use ulpf_stub_handlers::check::entries::{self, Function};
use ulpf_stub_handlers::check::{errno, family, judge};

use super::Control;
use super::check::{serve, served};
use super::entrances::{comes_to_served, jumps_to, room_at};
use super::watches::refusal;
use super::{functions, unwind};
use crate::inferior::Refusal;

fn no(why: &str, what_to_do: &str) -> Refusal {
    refusal(
        "cannot serve these functions".into(),
        why.into(),
        what_to_do.into(),
    )
}

/// The allocator function for this role.
fn function(does: Does) -> Option<Function> {
    Some(match does {
        Does::Malloc => Function::Malloc,
        Does::Calloc => Function::Calloc,
        Does::Realloc => Function::Realloc,
        Does::Reallocarray => Function::Reallocarray,
        Does::Free => Function::Free,
        Does::Memalign => Function::Memalign,
        Does::PosixMemalign => Function::PosixMemalign,
        Does::Valloc => Function::Valloc,
        Does::Pvalloc => Function::Pvalloc,
        Does::UsableSize => Function::UsableSize,
        Does::Delete => Function::Delete,
        Does::DeleteArray => Function::DeleteArray,
        _ => return None,
    })
}

impl Control {
    /// From now on these functions are served here, too, or known for their effect.
    pub fn serve_functions(&mut self, all: &[HeapFunction]) -> Result<(), Refusal> {
        if !entries::ON.load(core::sync::atomic::Ordering::SeqCst) {
            return Err(no("nothing is checked yet", "say ulpf heap-check before"));
        }
        let maps = Snapshot::read();
        let maps = maps.map_err(|_| no("its mappings cannot be read", "try again"))?;
        for one in all {
            let at = (one.start, one.start.saturating_add(one.len));
            match one.does {
                // (A program's own may have another meaning.)
                Does::Delete | Does::DeleteArray if !comes_to_served(one.start) => {}
                Does::New if self.check.tells_kinds => family::add_new(at, By::New),
                Does::NewArray if self.check.tells_kinds => {
                    family::add_new(at, By::NewArray);
                    self.serve_array(at);
                }
                Does::New | Does::NewArray => {}
                Does::Copies => judge::add_copier(at),
                Does::ReadsStrings | Does::MayReadStrings => self.reads_strings(one.does, at),
                Does::ErrnoLocation => errno::learn(at.0, &functions::block(at.0, errno::CODE)),
                Does::UnwindTable => unwind::add_table(self.world.stopped(), at, &maps),
                does => {
                    if let Some(function) = function(does) {
                        self.replace(false, does.word(), at, function, &maps);
                    }
                }
            }
            self.check.tells_kinds |= one.does == Does::Delete && served(at.0).is_some();
        }
        if let Some(code) = self.world.stopped().tables_mut().code.as_deref_mut() {
            code.sort();
        }
        self.serve_allocators();
        self.look_for_old_blocks();
        Ok(())
    }

    fn reads_strings(&mut self, does: Does, at: (u64, u64)) {
        let Some(code) = self.world.stopped().tables_mut().code.as_deref_mut() else {
            return;
        };
        match does {
            Does::ReadsStrings => code.strings.push(at),
            _ => code.vectors.push(at),
        }
    }

    /// An `operator new[]` that only jumps on to `operator new` leaves no trace among the callers.
    fn serve_array(&mut self, at: (u64, u64)) {
        if let Some(one) = jumps_to(at.0)
            && room_at(at) >= entries::JUMP as u64
        {
            serve(self.world.stopped(), at.0, Function::NewArray, Some(one));
        }
    }
}
