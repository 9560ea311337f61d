//! /proc/PID/maps, in which paths are the target's, for the command and for the stub.
#![no_main]

/// Small, and with a code segment.
const FILE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/conditions"));

ulpf_fuzz::target!(|data| {
    let text = String::from_utf8_lossy(data);
    ulpf_symbols::fuzzing::maps(&text, FILE);
    for line in ulpf_fuzz::lines(data) {
        let _ = ulpf_lib::guard::maps::parse_line(line);
    }
});
