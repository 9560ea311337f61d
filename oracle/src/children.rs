//! Children of a program that Unicorn judges. There is one machine: it runs the child to its end, then continues as
//! the parent. A forked child has its own memory, except shared memory; its accesses are not watched. A vfork child
//! runs in its parent's memory, where watches see it.

use crate::kernel::Verdict;
use crate::seccomp::Filters;
use crate::unicorn::Machine;
use unicorn_engine::{Context, RegisterX86 as R, Unicorn, uc_error};

/// A parent, whose child runs.
pub struct Parent {
    /// Where it goes on.
    at: u64,
    registers: Context,
    filters: Filters,
    /// Memory of which the child gets a copy.
    private: Option<[Vec<u8>; 3]>,
}

/// The machine has stopped: where it goes on, if a child begins or ends.
pub fn turn(
    uc: &mut Unicorn<Box<Machine>>,
    parent: &mut Option<Parent>,
) -> Result<Option<u64>, uc_error> {
    match (&uc.get_data().end, parent.take()) {
        (Some(Verdict::Child { shares, stack }), None) => {
            let (shares, stack) = (*shares, *stack);
            let registers = uc.context_init()?;
            uc.reg_write(R::RAX, 0)?;
            if stack != 0 {
                uc.reg_write(R::RSP, stack)?;
            }
            let m = uc.get_data_mut();
            let at = m.pc + 2;
            m.end = None;
            m.children += 1;
            m.recorder.unseen = !shares;
            m.recorder.thread = m.children;
            *parent = Some(Parent {
                at,
                registers,
                filters: m.kernel.filters.clone(),
                private: (!shares).then(|| m.private().map(|p| p.to_vec())),
            });
            Ok(Some(at))
        }
        (Some(Verdict::Exit), Some(p)) => {
            uc.context_restore(&p.registers)?;
            let m = uc.get_data_mut();
            m.end = None;
            m.recorder.unseen = false;
            m.recorder.thread = 0;
            m.kernel.filters = p.filters;
            // The machine uses these very bytes.
            for (to, from) in m.private().into_iter().zip(p.private.iter().flatten()) {
                to.copy_from_slice(from);
            }
            Ok(Some(p.at))
        }
        _ => Ok(None),
    }
}
