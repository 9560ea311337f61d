//! Reports to a stub in the same process (`stub_link.rs`): accesses that we have made elsewhere.

use ulpf_engine::access::AccessList;
use ulpf_lib::library_abi::{AccessRecord, AccessReport};

use crate::exception_stacks::{OLD, OwnBlock};
use crate::memory;
use crate::shared::Unchanging;
use crate::stub_link::{self, present};

/// Maximum number of accesses of one instruction.
const MOST: usize = 64;

/// Saves the old bytes of these accesses, if a stub is present. Returns `false` if it has not.
pub fn save_old(own: OwnBlock, still: &Unchanging, list: &AccessList) -> bool {
    let total: u64 = list.iter().map(|a| a.len).sum();
    if !present() || total > OLD as u64 {
        return false;
    }
    let mut to = own.old() as u64;
    for a in list.iter() {
        // SAFETY: all of them together are not longer than the buffer.
        if !unsafe { memory::save(still, to, a.addr.0, a.len) } {
            return false;
        }
        to += a.len;
    }
    true
}

/// Reports an instruction that was performed. `context` is the context that we return to, `kept` the result of
/// [`save_old`]. Returns `true` if the thread is to stop for it.
pub fn instruction(own: OwnBlock, pc: u64, context: u64, list: &AccessList, kept: bool) -> bool {
    if !present() {
        return false;
    }
    let mut made = [AccessRecord::default(); MOST];
    let mut count = 0;
    for (to, a) in made.iter_mut().zip(list.iter()) {
        *to = AccessRecord {
            addr: a.addr.0,
            len: a.len,
            kind: a.kind as u64,
        };
        count += 1;
    }
    let old = match kept {
        true => own.old() as u64,
        false => 0,
    };
    let report = AccessReport {
        pc,
        context,
        stack: own.bounds(),
        made: made.as_ptr() as u64,
        count,
        old,
        nr: -1,
        args: [0; 6],
        result: 0,
    };
    stub_link::report(&report)
}

/// Reports a system call that has moved bytes between these places and somewhere else.
pub fn system_call(
    own: OwnBlock,
    (nr, pc, args): (u32, u64, [u64; 6]),
    made: &[AccessRecord],
    old: u64,
    result: i64,
) {
    let report = AccessReport {
        pc,
        context: 0,
        stack: own.bounds(),
        made: made.as_ptr() as u64,
        count: made.len() as u64,
        old,
        nr: nr.into(),
        args,
        result,
    };
    stub_link::report(&report);
}
