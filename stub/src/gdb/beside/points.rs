//! `Z0` with conditions. gdbstub cuts the agent expressions off; all other breakpoint and watch
//! packets are its own.

use super::Served;
use crate::gdb::{GdbSession, amend, packet};
use crate::inferior::Inferior;
use ulpf_lib::TargetAddr;

pub fn serve(session: &mut GdbSession, inf: &mut dyn Inferior, payload: &[u8]) -> Served {
    let Some(point) = packet::conditional_breakpoint(payload) else { return Served::error() };
    if point.commands {
        return Served::error(); // BreakpointCommands is not announced
    }
    match inf.insert_breakpoint(TargetAddr(point.addr), point.conditions) {
        Ok(()) => Served::ok(),
        Err(refusal) => {
            session.debuggee.refusal = Some(refusal);
            Served::Reply(amend::refusal(session.debuggee.refusal.as_ref(), session.client))
        }
    }
}
