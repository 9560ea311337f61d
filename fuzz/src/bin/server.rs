//! A debugger (or a neighbour who found the port) talks to a server that has no program: a line is a packet.
#![no_main]

ulpf_fuzz::target!(|data| {
    ulpf_server::fuzzing::debugger(&ulpf_fuzz::lines(data));
});
