//! Restartable sequences (rseq(2)) of a program that already runs.
//!
//! The kernel writes to a thread's registered area whenever the thread was preempted, and kills the program if that
//! area is on a guarded page. When a program is started, the stub sees the registration and decides
//! (`stub/handlers/src/syscalls/rseq.rs`); the threads of an attached or forked program have registered before. So
//! their areas are unregistered, and the stub decides about each again. If it refuses, it leaves "no CPU number" in the
//! area. The C library then asks the kernel for the number, and its new threads do not register.
#![forbid(unsafe_code)]

use crate::gate::Gate;
use crate::tracee::{Memory, Tracee};
use std::io;

/// RSEQ_FLAG_UNREGISTER.
const UNREGISTER: u64 = 1;
/// Offset in the area (struct rseq) of the address of the current sequence (struct rseq_cs).
const CURRENT: u64 = 8;

/// Unregisters a thread's area and returns its address, length and signature (zeros if it had none). Inside a sequence,
/// the thread, whose state is saved, will resume at the sequence's abort address, as after any interruption.
///
/// # Errors
/// The kernel's. A thread without an area is not an error.
pub fn unregister(thread: &mut Tracee, memory: &Memory, gate: &Gate) -> io::Result<[u64; 3]> {
    let Some(area) = thread.rseq()? else {
        return Ok([0; 3]);
    };
    let call = [area.address, area.len, UNREGISTER, area.signature, 0, 0];
    if let Some(at) = abort_of(area.address, thread.home()?.regs.rip, memory)? {
        thread.resume_at(at);
    }
    if let Err(errno) = thread.syscall(gate, libc::SYS_rseq, call)? {
        return Err(io::Error::from_raw_os_error(errno));
    }
    Ok([area.address, area.len, area.signature])
}

/// The abort address of an interrupted sequence: `rseq_ip_fixup` in the kernel's kernel/rseq.c.
fn abort_of(area: u64, rip: u64, memory: &Memory) -> io::Result<Option<u64>> {
    let word = |at: u64| {
        let mut bytes = [0; 8];
        memory.read(at, &mut bytes)?;
        io::Result::Ok(u64::from_le_bytes(bytes))
    };
    // struct rseq_cs: version and flags, start, length, abort.
    match word(area.wrapping_add(CURRENT))? {
        0 => Ok(None),
        sequence => {
            let [start, len, abort] = [8, 16, 24].map(|offset| word(sequence.wrapping_add(offset)));
            let inside = rip.wrapping_sub(start?) < len?;
            Ok(inside.then_some(abort?))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_is_aborted_where_it_says() {
        let sequence: [u64; 4] = [0, 0x1000, 0x20, 0x3000];
        let area: [u64; 2] = [0, sequence.as_ptr() as u64];
        let memory = Memory::open(std::process::id() as i32).unwrap();
        let at = |rip| abort_of(area.as_ptr() as u64, rip, &memory).unwrap();
        assert_eq!(at(0xfff), None);
        assert_eq!(at(0x1000), Some(0x3000));
        assert_eq!(at(0x101f), Some(0x3000));
        assert_eq!(at(0x1020), None);
        let none: [u64; 2] = [0, 0];
        assert_eq!(
            abort_of(none.as_ptr() as u64, 0x1000, &memory).unwrap(),
            None
        );
    }
}
