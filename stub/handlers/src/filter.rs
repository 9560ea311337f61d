//! Evaluates the filter of a watch on the thread that made the access, without stopping it. Gives filters the thread's
//! registers, memory and callers.

use ulpf_engine::agent;
use ulpf_engine::cpu::Gprs;
use ulpf_lib::filter::{Candidate, Program};
use ulpf_stub_tables::filter::CountedFilter;

use crate::runtime::memory;
use crate::runtime::park::{self, notify};
use crate::runtime::thread::Current;
use crate::unwind;

#[inline]
pub fn passes(filter: &CountedFilter, t: Current, gprs: &Gprs, hit: &Candidate) -> bool {
    filter.passes(hit, &mut AtHit { t, gprs }, notify)
}

/// The thread that made the access, after its instruction.
struct AtHit<'a> {
    t: Current,
    gprs: &'a Gprs,
}

impl Program for AtHit<'_> {
    fn register(&mut self, number: u16) -> Option<u64> {
        agent::register(self.gprs, number)
    }

    fn read(&mut self, addr: u64, to: &mut [u8]) -> bool {
        memory::look(addr, to) == to.len()
    }

    fn process(&mut self) -> u64 {
        self.t.tgid() as u64
    }

    fn thread_pointer(&mut self) -> Option<u64> {
        Some(park::bases(self.t).0)
    }

    /// Without unwind tables, the word on top of the stack is the return address of a function that has pushed nothing
    /// (`memcpy`, a wrapper of a system call). The word behind rbp is that of a function with a frame.
    fn callers(&mut self) -> [Option<u64>; 2] {
        let gprs = self.gprs;
        if let Some(at) = unwind::caller(self.t, gprs) {
            return [Some(at.wrapping_sub(1)), None];
        }
        let framed = gprs.rbp & 7 == 0 && gprs.rbp >= gprs.rsp;
        let top = memory::get::<u64>(gprs.rsp);
        let frame = framed
            .then(|| memory::get::<u64>(gprs.rbp.wrapping_add(8)))
            .flatten();
        // A call may be the last instruction of its function.
        [top, frame].map(|at| at.map(|at| at.wrapping_sub(1)))
    }
}
