//! A debugger (or another user's process that found the port) talks to a server that has no program: a line is a packet.

pub const INPUTS: u64 = 8_300;

pub fn run(data: &[u8]) {
    ulpf_server::fuzzing::debugger(&crate::lines(data));
}
