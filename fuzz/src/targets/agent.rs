//! Bytecode of conditions, which runs inside the program's signal handlers.

use ulpf_lib::agent::{self, AgentContext, AgentError};

pub const INPUTS: u64 = 130_000;

struct Odd(usize);

impl AgentContext for Odd {
    fn reg(&mut self, number: u16) -> Option<u64> {
        (number < 18).then_some(u64::from(number) << 60 | 7)
    }
    fn read(&mut self, addr: u64, buf: &mut [u8]) -> bool {
        self.0 += 1;
        buf.fill(addr as u8);
        addr & 0x100 == 0
    }
    fn variable(&mut self, number: u16) -> Option<u64> {
        (number >= 0xff00).then_some(u64::MAX >> (number & 63))
    }
}

pub fn run(data: &[u8]) {
    let mut context = Odd(0);
    let result = agent::eval(data, &mut context);
    assert!(context.0 <= agent::STEPS);
    let known = agent::variables(data, |_| {});
    if let Err(error) = result {
        let back = AgentError::unpack(error.pack());
        // (Of an address the upper bits are left out.)
        assert!(back.is_some() && (back == Some(error) || matches!(error, AgentError::Memory(_))));
        // Code that `variables` accepts has no unsupported operation when it runs.
        assert!(!(known && matches!(error, AgentError::Unsupported(_)) && !jumps(data)));
    }
}

/// A jump may lead into the middle of an instruction.
fn jumps(code: &[u8]) -> bool {
    code.iter()
        .any(|op| matches!(*op, agent::op::GOTO | agent::op::IF_GOTO))
}
